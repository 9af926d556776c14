"""Query-key pairs in closed form against a count over the mask itself."""

from __future__ import annotations

import pytest

from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.ir.size import evaluate
from archc.ops.attention import causal_pairs_twice
from archc.spec.load import load_spec

SIZES = [(past, seq) for past in (0, 1, 4, 5, 7, 8, 9, 16, 23) for seq in (1, 2, 4, 5, 8, 9, 17)]


def lets_through(query: int, key: int, *, window: int | None, chunk: int | None, sink_tokens: int) -> bool:
    if key > query:
        return False
    if window is not None:
        return query - key < window or key < sink_tokens
    return chunk is None or query // chunk == key // chunk


def needed(past: int, seq: int, *, window: int | None = None, chunk: int | None = None, sink_tokens: int = 0) -> int:
    return sum(
        lets_through(query, key, window=window, chunk=chunk, sink_tokens=sink_tokens)
        for query in range(past, past + seq)
        for key in range(past + seq)
    )


FORGETTING = [{"window": window, "sink_tokens": first} for window, first in ((1, 1), (1, 7), (4, 2), (8, 3), (3, 30))]


@pytest.mark.parametrize(
    "reach",
    [{}, {"window": 1}, {"window": 4}, {"window": 8}, {"chunk": 1}, {"chunk": 4}, {"chunk": 8}, *FORGETTING],
    ids=str,
)
def test_needed_pairs_are_those_that_the_mask_lets_through(reach: dict[str, int]):
    formula = causal_pairs_twice("needed", **reach)
    for past, seq in SIZES:
        assert evaluate(formula, {"past": past, "seq": seq}) == 2 * needed(past, seq, **reach), (past, seq)


@pytest.mark.parametrize("reach", [{}, {"window": 4}, {"chunk": 4}, *FORGETTING], ids=str)
def test_dense_pairs_are_the_rectangle_of_new_tokens_and_rows_read(reach: dict[str, int]):
    formula = causal_pairs_twice("dense", **reach)
    rows = sum(reach.values()) or None
    for past, seq in SIZES:
        held = past if rows is None else min(past, rows)
        rectangle = sum(1 for _ in range(seq) for _ in range(held + seq))
        assert evaluate(formula, {"past": past, "seq": seq}) == 2 * rectangle, (past, seq)


@pytest.mark.parametrize("tokens", [1, 5, 8, 9, 40])
def test_a_model_with_windows_is_charged_what_its_masks_let_through(tokens: int):
    spec = load_spec("tiny-gpt-oss")
    flops = estimate(expand(spec), max_model_len=tokens).flops.numbers
    saved = 0
    for plan in spec.schedule():
        mixer = spec.mixers[plan.mixer]
        pairs = tokens * tokens - needed(0, tokens, window=mixer.sliding_window)
        saved += 2 * pairs * mixer.num_heads * 2 * mixer.head_dim
    assert flops["prefill_dense"] - flops["prefill"] == saved
