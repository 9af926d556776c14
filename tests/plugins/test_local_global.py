"""Windows and global tokens, between tokens and between blocks: they are masked softmax attention, and cost what they claim."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from archc.ir.size import BATCH, SEQ, evaluate  # noqa: E402
from archc.ir.values import TensorType  # noqa: E402
from archc.ops.block_sparse import BlockSparseAttention, random_plan  # noqa: E402
from archc.ops.local_global import LocalGlobalAttention, needed_pairs  # noqa: E402
from archc.torch_backend.leaves import block_sparse, local_global  # noqa: E402
from archc.torch_backend.leaves.softmax import attend  # noqa: E402

pytestmark = pytest.mark.torch

HEADS, DIM = 2, 6


def _masked(q, k, v, seen, added=None):
    """The formula: softmax over what is seen, in float64; all (batch, seq, heads x dim)."""
    q, k, v = (x.double().unflatten(-1, (HEADS, DIM)).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * DIM**-0.5 + (0.0 if added is None else added)
    return (scores.masked_fill(~seen, -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def _drawn(tokens: int, *, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(2, tokens, HEADS * DIM, generator=draw) for _ in range(3)]


def _seen_by_windows(tokens: int, window: int, num_global: int):
    at = torch.arange(tokens)
    first = at < num_global
    return ((at.unsqueeze(1) - at).abs() <= window // 2) | first | first.unsqueeze(1)


def _seen_by_blocks(tokens: int, size: int, plan=None):
    at = torch.arange(tokens) // size
    last = int(at[-1])
    seen = ((at.unsqueeze(1) - at).abs() <= 1) | (at == 0) | (at == last)
    seen = seen | (at == 0).unsqueeze(1) | (at == last).unsqueeze(1)
    heads = seen.expand(HEADS, tokens, tokens).clone()
    for head, rows in enumerate(plan or ()):
        for i, others in enumerate(rows, start=1):
            for other in others:
                heads[head, at == i] |= at == other
    return heads


@pytest.mark.parametrize("num_global", [0, 1, 3])
@pytest.mark.parametrize("window", [2, 6, 40])
@pytest.mark.parametrize("tokens", [3, 12, 25])
def test_windows_and_global_tokens_are_a_masked_softmax(tokens: int, window: int, num_global: int):
    op = LocalGlobalAttention(
        num_heads=HEADS, head_dim=DIM, scale=DIM**-0.5, window=window, num_global=num_global, has_padding=False
    )
    q, k, v = _drawn(tokens)
    got = local_global.LocalGlobalAttention(op, attend)(q, k, v)
    want = _masked(q, k, v, _seen_by_windows(tokens, window, num_global))
    assert float((got - want).abs().max()) < 1e-5


@pytest.mark.parametrize(("window", "num_global"), [(2, 0), (4, 1), (6, 3), (10, 2)])
def test_the_pairs_of_windows_are_the_ones_of_the_mask(window: int, num_global: int):
    formula = needed_pairs(SEQ, window, num_global)
    for tokens in range(1, 30):
        assert evaluate(formula, {"seq": tokens}) == int(_seen_by_windows(tokens, window, num_global).sum())


def test_what_is_computed_grows_with_the_length_and_not_with_its_square():
    op = LocalGlobalAttention(num_heads=12, head_dim=64, scale=0.125, window=512, num_global=1)
    kind = TensorType((BATCH, SEQ, 768))
    flops = op.flops([kind] * 3, "many", "dense")
    short, long = (evaluate(flops, {"batch": 1, "seq": tokens}) for tokens in (4096, 16384))
    assert long == 4 * short


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("tokens", "size", "few"), [(13, 2, 0), (21, 2, 1), (30, 3, 2)])
def test_blocks_that_see_blocks_are_a_masked_softmax(tokens: int, size: int, few: int, seed: int | None):
    op = BlockSparseAttention(
        num_heads=HEADS,
        head_dim=DIM,
        scale=DIM**-0.5,
        block_size=size,
        num_random_blocks=few,
        seed=seed if few else None,
        has_padding=False,
    )
    q, k, v = _drawn(tokens, seed=1)
    got = block_sparse.BlockSparseAttention(op, attend)(q, k, v)
    count = -(-tokens // size)
    plan = random_plan(count, HEADS, few, op.seed) if op.seed is not None else None
    seen, added = _seen_by_blocks(tokens, size, plan), None
    if tokens <= op.full_tokens:
        seen = torch.ones_like(seen)
    elif op.seed is None:
        # Each random block is the first once more: its keys count 1 + few times between the ends.
        at = torch.arange(tokens) // size
        between = ((at > 0) & (at < count - 1)).unsqueeze(1)
        added = torch.where(between & (at == 0), math.log(1 + few), 0.0).double()
    assert float((got - _masked(q, k, v, seen, added)).abs().max()) < 1e-5


@pytest.mark.parametrize(("size", "few", "seed"), [(2, 1, None), (2, 1, 5), (3, 0, None), (2, 2, 1)])
def test_the_pairs_of_blocks_are_the_ones_of_the_mask(size: int, few: int, seed: int | None):
    op = BlockSparseAttention(
        num_heads=HEADS, head_dim=DIM, scale=1.0, block_size=size, num_random_blocks=few, seed=seed
    )
    kind = TensorType((BATCH, SEQ, HEADS * DIM))
    flops = op.flops([kind] * 3, "many", "needed")
    for tokens in range(1, 34):
        count = -(-tokens // size)
        plan = random_plan(count, HEADS, few, seed) if seed is not None and tokens > op.full_tokens else None
        seen = _seen_by_blocks(tokens, size, plan)
        pairs = HEADS * tokens * tokens if tokens <= op.full_tokens else int(seen.sum())
        assert evaluate(flops, {"batch": 1, "seq": tokens}) == pairs * 4 * DIM


def test_drawn_blocks_are_the_same_everywhere_and_none_that_is_seen_anyway():
    plan = random_plan(12, 3, 2, 7)
    assert plan == random_plan.__wrapped__(12, 3, 2, 7)
    assert plan != random_plan(12, 3, 2, 8)
    for head in plan:
        for i, others in enumerate(head, start=1):
            assert len(set(others)) == 2
            assert all(0 < other < 11 and abs(other - i) > 1 for other in others)
    assert plan[0] != plan[1]
