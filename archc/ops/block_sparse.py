"""Attention between blocks of tokens: the first and the last with all, others with their neighbours and a few more (BigBird)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar

from archc.ir.op import Form, Op, Pairs, op
from archc.ir.piece import Piece
from archc.ir.size import BATCH, Dim, ceil_div, minimum
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType
from archc.ops.masked_attention import check_heads
from archc.ops.softmax import attend, joined_heads, to_heads


@op
class BlockSparseAttention(Op):
    """Block-sparse attention (BigBird, arXiv 2007.14062); inputs (q, k, v[, padding (batch, seq)]).

    Columns are cut into blocks of ``block_size``. The first and the last block see everything; one between them sees these two,
    itself, its neighbours, and ``num_random_blocks`` others a head. ``seed`` draws them; without one each random block is
    the first block again, whose keys then count 1 + num_random_blocks times: so published models are run, whose plan is drawn
    in training only. Up to (5 + 2 num_random_blocks) block_size columns, all see all. Padding is no key, but columns of it count.
    """

    op_name = "block_sparse_attention"
    counts_padding: ClassVar[bool] = True
    num_heads: int
    head_dim: int
    scale: float
    block_size: int
    num_random_blocks: int = 0
    seed: int | None = None
    has_padding: bool = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_heads(self.op_name, inputs, self.num_heads, self.num_heads, self.head_dim, self.head_dim)
        return (inputs[0].with_width(self.num_heads * self.head_dim, "heads"),)

    @property
    def full_tokens(self) -> int:
        """Columns up to which all see all."""
        return (5 + 2 * self.num_random_blocks) * self.block_size

    @property
    def drawn(self) -> int:
        """Random blocks that are drawn, and so read beside the others."""
        return 0 if self.seed is None else self.num_random_blocks

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op | None:
        """Blocks are drawn for one head after the other, so a rank that has some of them would draw others."""
        return None if self.drawn else replace(self, num_heads=piece.of(self.num_heads, "heads"))

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        tokens, size = inputs[1].shape[1], self.block_size
        beyond = tokens - self.full_tokens
        # 1 beyond the tokens up to which all see all, else 0.
        is_sparse = minimum(beyond - minimum(beyond, 0), 1)
        blocks = ceil_div(tokens, size)
        if pairs == "dense":
            met = blocks * size * (2 * size) + (blocks - 2) * (size * size * (5 + self.drawn))
        else:
            last = tokens - (blocks - 1) * size
            between = (blocks - 4) * size * (last + 4 * size) + 2 * size * (last + 3 * size)
            met = tokens * (last + size) + between + (blocks - 2) * (size * size * self.drawn)
        return BATCH * (tokens * tokens * (1 - is_sparse) + met * is_sparse) * (4 * self.num_heads * self.head_dim)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        q, k, v = (to_heads(tape, x, self.head_dim) for x in inputs[:3])
        batch, heads, seq, dim = q.shape
        if tape.number(seq) <= self.full_tokens:
            return attend(tape, q, k, v)
        size = self.block_size
        blocks = ceil_div(seq, size)
        whole, between = (batch, heads, blocks * size, dim), blocks - 2
        q, k, v = (tape.copy(x, whole) for x in (q, k, v))
        ends = tape.sdpa(
            tape.cat((q,), (batch, heads, 2 * size, dim)), k, v, tape.new((batch, 1, 1, blocks * size), q.dtype)
        )
        rows = batch * between
        met = (rows, heads, (5 + self.drawn) * size, dim)
        keys, values = (self._met(tape, x, met) for x in (k, v))
        shape = (rows, heads, size, dim)
        queries = tape.view(q, shape) if tape.number(batch) == 1 else tape.copy(q, shape)
        mask = tape.new((rows, heads if self.drawn else 1, 1, (5 + self.drawn) * size), q.dtype)
        middle = tape.sdpa(queries, keys, values, mask)
        return joined_heads(tape, tape.cat((ends, middle), (batch, heads, seq, dim)))

    def _met(self, tape: Tape, x: Held, shape: tuple[Dim, ...]) -> Held:
        """What each block between the ends meets; of drawn blocks the plan is kept."""
        if not self.drawn:
            return tape.copy(x, shape)
        heads, between = self.num_heads, ceil_div(x.shape[2], self.block_size) - 2
        plan = [tape.new((heads, 1, 1), "int64"), tape.new((heads, between, self.drawn), "int64")]
        return tape.fresh((x,), shape, keeps=plan)


@cache
def random_plan(blocks: int, num_heads: int, count: int, seed: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """head -> block between the ends -> ``count`` blocks that it sees beside its neighbours and the ends; the same everywhere."""
    draw = random.Random(seed)
    plan: list[tuple[tuple[int, ...], ...]] = []
    for _ in range(num_heads):
        rows = [[other for other in range(1, blocks - 1) if abs(other - i) > 1] for i in range(1, blocks - 1)]
        plan.append(tuple(tuple(sorted(draw.sample(row, count))) for row in rows))
    return tuple(plan)
