"""How fast an encoder reads here: tokens a second at a length, or pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from archc.errors import ArchcError
from archc_exporters.runtime.encoder import Encoder

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Tokens a second over the rounds."""

    median: float
    slowest: float
    fastest: float

    @classmethod
    def of(cls, tokens: int, seconds: Sequence[float]) -> Rate:
        return cls(median=tokens / median(seconds), slowest=tokens / max(seconds), fastest=tokens / min(seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderBench:
    """Rate of passes over a batch; ``unit`` says what is counted, tokens or pictures, and ``tokens`` how many a row."""

    name: str
    provider: str
    dtype: str
    threads: int
    batch_size: int
    tokens: int
    unit: str
    rounds: int
    forward: Rate

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def bench_encoder(
    model: Encoder, *, tokens: int, batch_size: int, rounds: int, threads: int, progress: Progress | None = None
) -> EncoderBench:
    """Passes over random ids or pictures, after a round that does not count.

    Raises:
        ArchcError: the tokens don't fit.
    """
    contract = model.contract
    if model.reads_ids and tokens > contract.max_model_len:
        raise ArchcError(
            f"{tokens:,} tokens are more than the {contract.max_model_len:,} of max_model_len; take fewer, or export with a "
            "larger --max-model-len"
        )
    seconds: list[float] = []
    for number in range(rounds + 1):
        rng = np.random.default_rng(number)
        if model.reads_ids:
            inputs: Any = rng.integers(0, contract.vocab_size or 2, (batch_size, tokens))
        else:
            inputs = rng.standard_normal((batch_size, *(int(size) for size in contract.inputs[0].shape[1:])))
        start = time.perf_counter()
        model.forward(inputs)
        seconds.append(time.perf_counter() - start)
        if progress is not None:
            progress("round", number, rounds)
    return EncoderBench(
        name=contract.name,
        provider=model.provider,
        dtype=contract.target.dtype,
        threads=threads,
        batch_size=batch_size,
        tokens=tokens if model.reads_ids else 0,
        unit="tokens" if model.reads_ids else "pictures",
        rounds=rounds,
        forward=Rate.of(batch_size * (tokens if model.reads_ids else 1), seconds[1:]),
    )
