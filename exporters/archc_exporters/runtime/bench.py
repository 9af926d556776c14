"""How fast a folder's model runs here, beside what the memory of this machine allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from archc.errors import ArchcError
from archc_exporters.runtime.buffers import Block, View
from archc_exporters.runtime.encoder import Encoder
from archc_exporters.runtime.encoder_bench import EncoderBench, Rate, bench_encoder
from archc_exporters.runtime.model import Model, load
from archc_exporters.runtime.prefill import MIN_CHUNK_TOKENS
from archc_exporters.runtime.provider import Provider, open_session
from archc_exporters.runtime.traffic import COUNTED, Traffic, decode_traffic

Progress = Callable[[str, int, int], None]
_PROBE_COLUMNS = 16_384
_PROBE_BYTES: dict[Provider, int] = {"cpu": 256 << 20, "cuda": 4 << 30}
"""What the bandwidth is measured on, several times the last cache of any processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Rates of prefill and decode, and decode's bound: bandwidth of the same run over the bytes that a step must read."""

    name: str
    provider: str
    dtype: str
    threads: int
    batch_size: int
    prompt_tokens: int
    new_tokens: int
    rounds: int
    prefill: Rate
    decode: Rate
    weight_bytes_a_step: int
    cache_bytes_a_step: int
    bandwidth_bytes_per_second: float
    bound_tokens_per_second: float
    share_of_bound: float
    counted: str = COUNTED

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def bench(
    folder: str | PathLike[str],
    *,
    prompt_tokens: int = 512,
    new_tokens: int = 64,
    batch_size: int = 1,
    rounds: int = 5,
    chunk_size: int = 512,
    provider: str | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Bench | EncoderBench:
    """Prefill and greedy decode of random ids, after a round that does not count; the bandwidth is measured between rounds.

    Of an encoder passes over ``prompt_tokens`` random ids a row, or over as many pictures as the batch has. Where a decoder
    reads an encoder, the prompt is that one's: what prefill is of others.

    Raises:
        ArchcError: the folder can't be run, or the tokens don't fit.
    """
    for name, value, least in (
        ("prompt_tokens", prompt_tokens, 1),
        ("new_tokens", new_tokens, 1),
        ("batch_size", batch_size, 1),
        ("rounds", rounds, 1),
        ("chunk_size", chunk_size, MIN_CHUNK_TOKENS),
    ):
        if value < least:
            raise ArchcError(f"{name} should be at least {least} (found {value})")
    model = load(folder, provider=provider, threads=threads)
    if isinstance(model, Encoder):
        return bench_encoder(
            model, tokens=prompt_tokens, batch_size=batch_size, rounds=rounds, threads=threads, progress=progress
        )
    answers = model.encoder is not None
    total, limit = (0 if answers else prompt_tokens) + new_tokens, model.contract.max_model_len
    if max(total, prompt_tokens) > limit:
        raise ArchcError(
            f"{prompt_tokens:,} + {new_tokens:,} tokens are {total:,}, more than the {limit:,} of max_model_len; "
            "take fewer, or export with a larger --max-model-len"
        )
    # The middle of decode stands for all of it.
    rows = (0 if answers else prompt_tokens) + new_tokens // 2
    source = prompt_tokens if answers else 0
    traffic = decode_traffic(Path(folder), model.contract, batch=batch_size, rows=rows, source=source)
    probe = _Probe(model.provider, threads)
    times: list[tuple[float, float, float]] = []
    for number in range(rounds + 1):
        prompt = _random_ids(model, batch_size, prompt_tokens, seed=number)
        seconds = _round(model, prompt, new_tokens, chunk_size)
        times.append((*seconds, probe.seconds()))
        if progress is not None:
            progress("round", number, rounds)
    return _result(model, traffic, probe, times[1:], (batch_size, prompt_tokens, new_tokens, threads))


def _result(
    model: Model,
    traffic: Traffic,
    probe: _Probe,
    times: Sequence[tuple[float, float, float]],
    sizes: tuple[int, int, int, int],
) -> Bench:
    batch, prompt_tokens, new_tokens, threads = sizes
    prefills, decodes, reads = zip(*times, strict=True)
    decode = Rate.of(batch * new_tokens, decodes)
    # A bound is set by what the memory can do at its best.
    bandwidth = probe.count_bytes / min(reads)
    bound = batch * bandwidth / traffic.bytes
    return Bench(
        name=model.contract.name,
        provider=model.provider,
        dtype=model.contract.target.dtype,
        threads=threads,
        batch_size=batch,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        rounds=len(times),
        prefill=Rate.of(batch * prompt_tokens, prefills),
        decode=decode,
        weight_bytes_a_step=traffic.weight_bytes,
        cache_bytes_a_step=traffic.cache_bytes,
        bandwidth_bytes_per_second=bandwidth,
        bound_tokens_per_second=bound,
        share_of_bound=decode.median / bound,
    )


def _random_ids(model: Model, batch: int, tokens: int, *, seed: int) -> list[list[int]]:
    assert model.contract.vocab_size is not None
    size = model.contract.source_vocab_size or model.contract.vocab_size
    return np.random.default_rng(seed).integers(0, size, (batch, tokens)).tolist()


def _round(model: Model, prompts: list[list[int]], new_tokens: int, chunk: int) -> tuple[float, float]:
    """(seconds of prefill, of ``new_tokens`` decode steps), caches made before the clock starts."""
    written = prompts if model.encoder is None else [[model.contract.start_id or 0]] * len(prompts)
    engine = model.engine(len(prompts), len(written[0]) + new_tokens)
    start = time.perf_counter()
    logits = model.read(engine, prompts, written, chunk=chunk)
    middle = time.perf_counter()
    for _ in range(new_tokens):
        drawn = logits.astype(np.float32, copy=False).argmax(-1)
        found = engine.step(drawn[:, None])
        assert found is not None
        logits = found
    return middle - start, time.perf_counter() - middle


class _Probe:
    """Reads a matrix larger than any processor's cache, as a decode step reads weights: one row of inputs times the matrix."""

    def __init__(self, provider: Provider, threads: int) -> None:
        self.count_bytes = _PROBE_BYTES[provider]
        self._session = open_session(_matmul(), provider, threads=threads)
        rows = self.count_bytes // (4 * _PROBE_COLUMNS)
        block = Block(self.count_bytes, provider)
        if block.host is not None:
            # Zeros that nobody wrote are one page of memory, over and over.
            block.host[...] = 1
        self._matrix = View(self._session, block, "float32", (rows, _PROBE_COLUMNS))
        self._result = View(self._session, Block(4 * rows, provider), "float32", (1, rows))
        self._binding: ort.IOBinding = self._session.io_binding()
        self._binding.bind_cpu_input("x", np.zeros((1, _PROBE_COLUMNS), np.float32))
        self._binding.bind_ortvalue_input("w", self._matrix.value)
        self._binding.bind_ortvalue_output("y", self._result.value)

    def seconds(self) -> float:
        """The best of three readings."""
        found: list[float] = []
        for _ in range(3):
            start = time.perf_counter()
            self._session.run_with_iobinding(self._binding)
            found.append(time.perf_counter() - start)
        return min(found)


def _matmul() -> bytes:
    """A row times a matrix whose rows lie along the product, which reads memory straight on."""
    x, w, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, "columns"]), ("w", ["rows", "columns"]), ("y", [1, "rows"]))
    )
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", transB=1)
    graph = helper.make_graph([node], "bandwidth", [x, w], [y])
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
