"""``archc.load(DIR).generate(...)``: an exported folder that writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from archc.errors import ArchcError
from archc.units import gib
from archc_exporters.onnx.memory import free_memory_bytes
from archc_exporters.runtime.buffers import Array
from archc_exporters.runtime.engine import Engine
from archc_exporters.runtime.folder import MODEL, Contract, read_folder
from archc_exporters.runtime.prefill import MIN_CHUNK_TOKENS, Progress, prefill
from archc_exporters.runtime.provider import Provider, choose, first_line, open_session
from archc_exporters.runtime.sampling import Sampling
from archc_exporters.runtime.sampling import choose as choose_ids
from archc_exporters.runtime.text import Text, read_tokenizer

DEFAULT_NEW_TOKENS = 128
DEFAULT_CHUNK_TOKENS = 512
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Token:
    """An id that was generated, and the text that can be read since the one before; ``is_last`` ends its row."""

    row: int
    id: int
    text: str
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What a generation took. The first new token of each row is the prefill's, the others are decode's."""

    prompt_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.prompt_tokens / max(self.prefill_seconds, 1e-9)

    @property
    def decode_tokens_per_second(self) -> float:
        return self.decode_tokens / max(self.decode_seconds, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was generated, a list entry a prompt.

    Attributes:
        ids: new ids, that which ended the row included.
        texts: the text of the new ids; None without a tokenizer.
        finished: ``stop`` where an id ended the row, ``length`` where the number of tokens did.
        cache_bytes: of the buffers that held the caches.
    """

    prompts: list[list[int]]
    ids: list[list[int]]
    texts: list[str] | None
    finished: list[str]
    timings: Timings
    cache_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain data, rates included."""
        timings = asdict(self.timings)
        timings["prefill_tokens_per_second"] = self.timings.prefill_tokens_per_second
        timings["decode_tokens_per_second"] = self.timings.decode_tokens_per_second
        return {
            "prompts": self.prompts,
            "ids": self.ids,
            "texts": self.texts,
            "finished": self.finished,
            "timings": timings,
            "cache_bytes": self.cache_bytes,
        }


class Model:
    """A folder's model on one provider. ``contract`` says what it is, ``provider`` where it runs."""

    def __init__(
        self, folder: Path, contract: Contract, session: ort.InferenceSession, provider: Provider, text: Text | None
    ) -> None:
        self.folder, self.contract, self.text = folder, contract, text
        self.session = session
        self.provider: Provider = provider

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_ids: Iterable[int] | None = None,
        chunk_size: int = DEFAULT_CHUNK_TOKENS,
        max_model_len: int | None = None,
        on_token: Callable[[Token], None] | None = None,
        progress: Progress | None = None,
    ) -> Generation:
        """Continue one prompt or several at once, texts or ids, each until one of ``stop_ids`` or ``max_new_tokens``.

        ``stop_ids`` defaults to the tokenizer's end of text, ``max_new_tokens`` to 128 or the room that is left.
        ``chunk_size`` tokens of a prompt are fed at a time. ``max_model_len`` makes the caches longer than prompt and new
        tokens need. ``on_token`` sees every token when it is drawn, ``progress`` the prefill.

        Raises:
            ArchcError: a prompt is empty, holds ids that the model has not, or does not fit with the new tokens.
        """
        given = _listed(prompts)
        ids = [self._ids(prompt, number) for number, prompt in enumerate(given)]
        if chunk_size < MIN_CHUNK_TOKENS:
            raise ArchcError(f"chunk_size should be at least {MIN_CHUNK_TOKENS} (found {chunk_size})")
        new_tokens = self._new_tokens(ids, max_new_tokens, max_model_len)
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        engine = self.engine(len(ids), max(map(len, ids)) + new_tokens, max_model_len)
        rows = _Rows(self, ids, self.contract.eos() if stop_ids is None else tuple(stop_ids), new_tokens, on_token)
        start = time.perf_counter()
        logits = prefill(engine, ids, self.contract, chunk=chunk_size, progress=progress)
        generators = sampling.generators(len(ids))
        first = choose_ids(logits, sampling, generators)
        middle = time.perf_counter()
        for drawn in _decode(engine, first, sampling, generators):
            if rows.take(drawn):
                break
        return rows.generation(
            Timings(
                prompt_tokens=sum(map(len, ids)),
                prefill_seconds=middle - start,
                decode_tokens=sum(len(row) - 1 for row in rows.ids),
                decode_seconds=time.perf_counter() - middle,
            ),
            engine.cache_bytes,
        )

    def engine(self, batch: int, tokens: int, max_model_len: int | None = None) -> Engine:
        """Empty caches for ``batch`` sequences of ``tokens`` tokens, or ``max_model_len`` where that is more.

        Raises:
            ArchcError: the caches don't fit into memory.
        """
        capacity = self.contract.capacity(max(tokens, max_model_len or 0))
        needed = self.contract.cache_bytes(batch=batch, capacity=capacity)
        what = f"caches of {gib(needed)} for {batch:,} sequences of {capacity:,} rows"
        if self.provider == "cpu" and needed > (free := free_memory_bytes()):
            raise ArchcError(
                f"{what} don't fit into the {gib(free)} of memory that are free; take fewer sequences or tokens"
            )
        try:
            return Engine(self.session, self.contract, batch=batch, capacity=capacity, device=self.provider)
        except (MemoryError, RuntimeError) as error:
            raise ArchcError(f"{what} can't be had ({first_line(error)}); take fewer sequences or tokens") from error

    def _ids(self, prompt: Prompt, number: int) -> list[int]:
        if isinstance(prompt, str):
            if self.text is None:
                raise ArchcError(
                    f"{self.folder} has no tokenizer, so a prompt is ids; archc export --tokenizer FILE puts one there"
                )
            ids = self.text.encode(prompt)
        else:
            ids = [int(one) for one in prompt]
        if not ids:
            raise ArchcError(f"prompt {number} is empty; a prompt has at least one token")
        size = self.contract.vocab_size or 0
        wrong = [one for one in ids if not 0 <= one < size]
        if wrong:
            raise ArchcError(f"prompt {number} has the id {wrong[0]}; this model's ids are 0 to {size - 1}")
        return ids

    def _new_tokens(self, ids: Sequence[Sequence[int]], asked: int | None, max_model_len: int | None) -> int:
        longest = max(map(len, ids))
        limit = self.contract.max_model_len if max_model_len is None else max_model_len
        if limit > self.contract.max_model_len:
            made = self.contract.max_model_len
            raise ArchcError(f"max_model_len {limit:,} is more than the {made:,} that the file was made for")
        if asked is not None and asked < 1:
            raise ArchcError(f"max_new_tokens should be at least 1 (found {asked})")
        wanted = min(DEFAULT_NEW_TOKENS, max(1, limit - longest)) if asked is None else asked
        if longest + wanted > limit:
            raise ArchcError(
                f"a prompt of {longest:,} tokens and {wanted:,} new ones are {longest + wanted:,}, more than the "
                f"{limit:,} of max_model_len; shorten the prompt, ask for fewer, or export with a larger --max-model-len"
            )
        return wanted


def _decode(engine: Engine, drawn: Array, sampling: Sampling, generators: list[np.random.Generator]) -> Iterator[Array]:
    """The first ids, then those of one step after the other; a row that has ended is fed on, because rows share a call."""
    while True:
        yield drawn
        logits = engine.step(drawn[:, None])
        assert logits is not None
        drawn = choose_ids(logits, sampling, generators)


class _Rows:
    """What each row has so far."""

    def __init__(
        self,
        model: Model,
        prompts: list[list[int]],
        stop_ids: tuple[int, ...],
        new_tokens: int,
        on_token: Callable[[Token], None] | None,
    ) -> None:
        self._prompts = prompts
        self._stop_ids, self._new_tokens, self._on_token = frozenset(stop_ids), new_tokens, on_token
        self._readers = None if model.text is None else [model.text.reader() for _ in prompts]
        self.ids: list[list[int]] = [[] for _ in prompts]
        self._finished: list[str | None] = [None] * len(prompts)

    def take(self, drawn: Array) -> bool:
        """Give each open row its id. Returns whether all rows have ended."""
        for row, number in enumerate(drawn.tolist()):
            if self._finished[row] is not None:
                continue
            self.ids[row].append(number)
            if number in self._stop_ids:
                self._finished[row] = "stop"
            elif len(self.ids[row]) == self._new_tokens:
                self._finished[row] = "length"
            self._tell(row, number, is_last=self._finished[row] is not None)
        return None not in self._finished

    def _tell(self, row: int, number: int, *, is_last: bool) -> None:
        text = ""
        if self._readers is not None:
            text = self._readers[row].push(number)
            if is_last:
                text += self._readers[row].rest()
        if self._on_token is not None:
            self._on_token(Token(row, number, text, is_last))

    def generation(self, timings: Timings, cache_bytes: int) -> Generation:
        return Generation(
            prompts=self._prompts,
            ids=self.ids,
            texts=None if self._readers is None else [reader.text for reader in self._readers],
            finished=[end or "length" for end in self._finished],
            timings=timings,
            cache_bytes=cache_bytes,
        )


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt as a list of one; ids of a single prompt are told from several prompts by their first member."""
    if isinstance(prompts, str):
        return [prompts]
    several: list[Any] = list(prompts)
    if not several:
        raise ArchcError("there is no prompt; give at least one")
    return [several] if isinstance(several[0], int | np.integer) else several


def load(folder: str | PathLike[str], *, provider: str | None = None, threads: int = 0) -> Model:
    """The model in a folder that ``archc export`` wrote, ready to generate.

    ``provider`` is ``cuda`` or ``cpu``: by default CUDA where the file was made for it and a device is there. 0 ``threads``
    lets onnxruntime choose.

    Raises:
        ArchcError: the folder is no export, is not whole, or can't run here.
        MissingExtraError: its tokenizer needs ``tokenizers``, which is not installed.
    """
    place = Path(folder)
    contract = read_folder(place)
    if contract.outputs[0].name != "logits" or contract.vocab_size is None:
        raise ArchcError(
            f"{place} ends in {contract.outputs[0].name}, not in logits: there is nothing to generate from"
        )
    if threads < 0:
        raise ArchcError(f"threads should be 0 or more (found {threads})")
    chosen = choose(contract.target.provider, provider)
    if chosen == "cpu" and contract.target.dtype == "bfloat16":
        raise ArchcError(
            f"{place} is bfloat16, which onnxruntime's CPU can't run; export it with --dtype f32 or f16, or run it on CUDA"
        )
    text = None if contract.tokenizer is None else read_tokenizer(place / contract.tokenizer.file)
    return Model(place, contract, open_session(place / MODEL, chosen, threads=threads), chosen, text)
