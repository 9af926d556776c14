"""``archc.load(DIR).generate(...)``: an exported folder that writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from archc.errors import ArchcError
from archc.generation.result import Generation, Token
from archc.generation.rows import DEFAULT_CHUNK_TOKENS, DEFAULT_NEW_TOKENS, Prompt, Rows, listed, prompt_ids
from archc.generation.sampling import Sampler, Sampling, Seed
from archc.generation.text import Text, read_tokenizer
from archc.units import gib
from archc_exporters.onnx.memory import free_memory_bytes
from archc_exporters.runtime.buffers import Array
from archc_exporters.runtime.encoder import Encoder, read_source, still_value
from archc_exporters.runtime.engine import Engine
from archc_exporters.runtime.folder import MODEL, PREFIX_LENGTH, Contract, read_folder
from archc_exporters.runtime.prefill import MIN_CHUNK_TOKENS, Progress, prefill
from archc_exporters.runtime.provider import Provider, choose, first_line, open_session


class Model:
    """A folder's model on one provider. ``contract`` says what it is, ``provider`` where it runs.

    ``text`` is the tokenizer of what it writes, ``source`` that of prompts: the same but where an encoder has its own.
    """

    def __init__(
        self,
        folder: Path,
        contract: Contract,
        session: ort.InferenceSession,
        provider: Provider,
        text: Text | None,
        encoder: ort.InferenceSession | None = None,
        source: Text | None = None,
    ) -> None:
        self.folder, self.contract, self.text, self.source = folder, contract, text, source
        self.session, self.encoder = session, encoder
        self.provider: Provider = provider

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | Sequence[Seed] = 0,
        stop_ids: Iterable[int] | None = None,
        chunk_size: int = DEFAULT_CHUNK_TOKENS,
        max_model_len: int | None = None,
        decoder_ids: Sequence[int] | None = None,
        on_token: Callable[[Token], None] | None = None,
        progress: Progress | None = None,
    ) -> Generation:
        """Continue one prompt or several at once, texts or ids, each until one of ``stop_ids`` or ``max_new_tokens``.

        A decoder with an encoder answers: the prompt is the encoder's, and the decoder starts from ``decoder_ids``, by default
        the ``start_id`` of the contract. Where the mask has a prefix, the prompt is that.

        ``stop_ids`` defaults to the tokenizer's end of text, ``max_new_tokens`` to 128 or the room that is left.
        ``chunk_size`` tokens of a prompt are fed at a time. ``max_model_len`` makes the caches longer than prompt and new
        tokens need. ``on_token`` sees every token when it is drawn, ``progress`` the prefill.

        Raises:
            ArchcError: a prompt is empty, holds ids that the model has not, or does not fit with the new tokens.
        """
        size = self.contract.vocab_size or 0
        source_size = self.contract.source_vocab_size or size
        ids = prompt_ids(
            listed(prompts),
            text=self.source,
            vocab_size=source_size,
            hint=f"{self.folder} has no tokenizer, so a prompt is ids; archc export --tokenizer FILE puts one there",
        )
        first = self._first_ids(decoder_ids)
        written = ids if first is None else [first] * len(ids)
        if chunk_size < MIN_CHUNK_TOKENS:
            raise ArchcError(f"chunk_size should be at least {MIN_CHUNK_TOKENS} (found {chunk_size})")
        new_tokens = self._new_tokens(written, max_new_tokens, max_model_len)
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        sampler = Sampler(sampling, written, vocab_size=size)
        ends = self.contract.eos() if stop_ids is None else tuple(stop_ids)
        rows = Rows(ids, self.text, stop_ids=ends, new_tokens=new_tokens, on_token=on_token)
        engine = self.engine(len(ids), max(map(len, written)) + new_tokens, max_model_len)
        start = time.perf_counter()
        logits = self.read(engine, ids, written, chunk=chunk_size, progress=progress)
        first = sampler.draw(logits)
        middle = time.perf_counter()
        for drawn in _decode(engine, first, sampler):
            if rows.take(drawn.tolist()):
                break
        return rows.generation(
            prefill_seconds=middle - start,
            decode_seconds=time.perf_counter() - middle,
            cache_bytes=engine.cache_bytes,
        )

    def read(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        written: Sequence[Sequence[int]],
        *,
        chunk: int,
        progress: Progress | None = None,
    ) -> Array:
        """Feed the prompts, to an encoder where there is one, and what is ``written`` to the caches: logits of the next ids.

        Raises:
            ArchcError: a prompt is longer than the encoder takes, or onnxruntime failed.
        """
        if self.encoder is not None:
            if (longest := max(map(len, prompts))) > self.contract.max_model_len:
                made = self.contract.max_model_len
                raise ArchcError(f"a prompt of {longest:,} tokens is more than the {made:,} that the file was made for")
            engine.give(read_source(self.encoder, self.contract, prompts, self.provider))
            chunk = max(chunk, max(map(len, written)))
        elif self.contract.mask == "prefix":
            # Tokens that see each other belong into one call.
            chunk = max(map(len, written))
            engine.give({PREFIX_LENGTH: still_value(np.array([len(row) for row in written]), self.provider)})
        return prefill(engine, written, self.contract, chunk=chunk, progress=progress)

    def _first_ids(self, given: Sequence[int] | None) -> list[int] | None:
        """What a decoder that reads an encoder is given before it writes; None where there is no encoder."""
        if self.encoder is None:
            if given is not None:
                raise ArchcError(f"{self.folder} has no encoder, so decoder_ids belong to the prompt")
            return None
        if given is None:
            if self.contract.start_id is None:
                raise ArchcError(
                    f"{self.folder} does not say from which id its decoder starts; give decoder_ids, or export a spec that "
                    "states bos_token_id, or pad_token_id as in T5"
                )
            return [self.contract.start_id]
        first, size = [int(one) for one in given], self.contract.vocab_size or 0
        if not first or any(not 0 <= one < size for one in first):
            raise ArchcError(f"decoder_ids should be one id or more from 0 to {size - 1} (found {first})")
        return first

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


def _decode(engine: Engine, drawn: Array, sampler: Sampler) -> Iterator[Array]:
    """The first ids, then those of one step after the other; a row that has ended is fed on, because rows share a call."""
    while True:
        yield drawn
        logits = engine.step(drawn[:, None])
        assert logits is not None
        drawn = sampler.draw(logits)


def load(folder: str | PathLike[str], *, provider: str | None = None, threads: int = 0) -> Any:
    """The ``Model`` in a folder that ``archc export`` wrote, ready to generate, or an ``Encoder``, ready to read.

    ``provider`` is ``cuda`` or ``cpu``: by default CUDA where the file was made for it and a device is there. 0 ``threads``
    lets onnxruntime choose.

    Raises:
        ArchcError: the folder is no export, is not whole, or can't run here.
        MissingExtraError: its tokenizer needs ``tokenizers``, which is not installed.
    """
    place = Path(folder)
    contract = read_folder(place)
    is_whole = contract.mask == "bidirectional"
    if not is_whole and (contract.outputs[0].name != "logits" or contract.vocab_size is None):
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
    session = open_session(place / MODEL, chosen, threads=threads)
    if is_whole:
        return Encoder(place, contract, session, chosen, text)
    encoder = None
    if contract.encoder is not None:
        encoder = open_session(place / contract.encoder.file, chosen, threads=threads)
    own = contract.source_tokenizer
    source = text if own is None else None if own.file is None else read_tokenizer(place / own.file)
    return Model(place, contract, session, chosen, text, encoder, source)
