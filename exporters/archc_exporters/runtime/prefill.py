"""Prompts into the caches, a chunk at a time: all rows at once, or a row at a time where the file takes no batch of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from archc_exporters.runtime.buffers import Array
from archc_exporters.runtime.engine import Engine
from archc_exporters.runtime.folder import Contract

MIN_CHUNK_TOKENS = 8
Progress = Callable[[int, int], None]
"""Called with the tokens that are in the caches and those of all prompts."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``counts[b]`` tokens of row b from ``start`` on. ``row`` is None for all rows, else the only one that is fed."""

    start: int
    counts: tuple[int, ...]
    row: int | None = None


def calls(lengths: Sequence[int], contract: Contract, *, chunk: int) -> Iterator[Call]:
    """The calls that feed prompts of these lengths."""
    batch, longest = len(lengths), max(lengths)
    ragged = min(lengths) < longest
    for start in range(0, longest, chunk):
        counts = tuple(min(max(length - start, 0), chunk) for length in lengths)
        together = contract.batched_chunks if start else not ragged or contract.ragged_prompts
        if batch == 1 or together or max(counts) == min(counts) == 1:
            yield Call(start, counts)
        else:
            yield from (Call(start, counts, row) for row in range(batch) if counts[row])


def prefill(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    contract: Contract,
    *,
    chunk: int,
    progress: Progress | None = None,
) -> Array:
    """Feed the prompts. Returns the logits of each one's last token, (batch, vocab_size)."""
    lengths = [len(prompt) for prompt in prompts]
    found: list[Array | None] = [None] * len(prompts)
    done = 0
    for call in calls(lengths, contract, chunk=chunk):
        rows = range(len(prompts)) if call.row is None else (call.row,)
        ends = [row for row in rows if call.counts[row] and call.start + call.counts[row] == lengths[row]]
        logits = _feed(engine, prompts, call, wanted=bool(ends))
        for row in ends:
            assert logits is not None
            # A copy, because the next call writes over it.
            found[row] = logits[row if call.row is None else 0].copy()
        done += sum(call.counts[row] for row in rows)
        if progress is not None:
            progress(done, sum(lengths))
    return np.stack([row for row in found if row is not None])


def _feed(engine: Engine, prompts: Sequence[Sequence[int]], call: Call, *, wanted: bool) -> Array | None:
    if call.row is not None:
        end = call.start + call.counts[call.row]
        return engine.step_row(call.row, np.array([prompts[call.row][call.start : end]], np.int64), wanted=wanted)
    ids = np.zeros((len(prompts), max(call.counts)), np.int64)
    for row, count in enumerate(call.counts):
        ids[row, :count] = prompts[row][call.start : call.start + count]
    return engine.step(ids, np.array(call.counts, np.int64), wanted=wanted)
