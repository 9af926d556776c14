"""Rings with first tokens before them: which row holds which position, against a walk over the tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from archc.torch_backend.leaves.caches import ring_positions, write_ring  # noqa: E402
from archc.torch_backend.leaves.softmax import visible  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402

pytestmark = pytest.mark.torch

SIZES = [(1, 0), (4, 0), (1, 1), (3, 2), (4, 4), (2, 9)]
"""(window, first tokens)"""


def rows_after(tokens: int, window: int, first: int) -> list[int]:
    """Position in each row after so many tokens, -1 in an empty one: first tokens stay, each other takes the oldest's row."""
    rows = [-1] * (first + window)
    for position in range(tokens):
        row = position if position < first else first + (position - first) % window
        rows[row] = position
    return rows


@pytest.mark.parametrize(("window", "first"), SIZES)
def test_rows_hold_first_and_newest_positions_and_fill_in_order(window: int, first: int):
    for tokens in range(1, 25):
        (found,) = ring_positions(torch.tensor([[tokens]]), window + first, first).tolist()
        # Which row of the ring holds what is no promise, which positions are held is.
        assert sorted(max(-1, position) for position in found) == sorted(rows_after(tokens, window, first))
        assert found[:first] == [row if row < tokens else -1 for row in range(first)]
        assert all(position >= 0 for position in found[: min(tokens, window + first)])


@pytest.mark.parametrize(("window", "first"), SIZES)
@pytest.mark.parametrize("pieces", [[1] * 20, [20], [7, 1, 1, 5, 6], [2, 13, 1, 4]], ids=str)
def test_rows_are_written_where_positions_say_they_are(window: int, first: int, pieces: list[int]):
    cache, past = torch.full((1, 1, window + first, 1), -1.0), 0
    for seq in pieces:
        write_ring(cache, torch.arange(past, past + seq).view(1, 1, seq, 1).float(), Step.at(past, seq), first)
        past += seq
        expected = ring_positions(torch.tensor([[past]]), window + first, first)
        assert cache.flatten().tolist() == expected.clamp(min=-1)[0].tolist()


@pytest.mark.parametrize(("window", "first"), SIZES)
def test_rows_of_different_lengths_are_written_each_at_its_own_place(window: int, first: int):
    cache, past = torch.full((3, 1, window + first, 1), -1.0), torch.zeros(3, dtype=torch.int64)
    for new in ([5, 0, 1], [1, 9, 1], [1, 1, 0], [8, 2, 14]):
        count = torch.tensor(new)
        step = Step.ragged(past, count, max(new))
        # What stands in the padding must never be written.
        rows = torch.where(step.valid(), step.positions, 1000).view(3, 1, -1, 1).float()
        write_ring(cache, rows, step, first)
        past = past + count
        expected = ring_positions(past.unsqueeze(1), window + first, first).clamp(min=-1)
        assert cache[:, 0, :, 0].tolist() == expected.tolist()


@pytest.mark.parametrize(("window", "first"), SIZES)
def test_first_tokens_are_seen_from_everywhere_behind_them(window: int, first: int):
    query, key = torch.arange(14).unsqueeze(0), torch.arange(-2, 14).unsqueeze(0)
    found = visible(query, key, window=window, sink_tokens=first)[0, 0]
    for q in range(14):
        assert found[q].tolist() == [0 <= k <= q and (q - k < window or k < first) for k in range(-2, 14)]
