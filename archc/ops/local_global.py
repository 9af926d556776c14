"""Local windows and a few global tokens (Longformer, arXiv 2004.05150): linear in the length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, Dim, ceil_div, minimum
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType
from archc.ops.masked_attention import check_heads, two_sided_pairs
from archc.ops.softmax import joined_heads, to_heads


@op
class FirstTokens(Op):
    """(x (batch, tokens, width)[, padding (batch, tokens)]) -> (batch, count, width): the first tokens of each row.

    Padding, left or right, is no token; a row with fewer repeats its last place.
    """

    op_name = "first_tokens"
    count: int
    has_padding: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = inputs[0]
        return (TensorType((x.shape[0], self.count, x.width), x.dtype, x.axis),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x = inputs[0]
        places = tape.new((x.shape[0], self.count), "int64")
        return tape.gather(x, places, (x.shape[0], self.count, x.width))


@op
class LocalGlobalAttention(Op):
    """Each token sees ``window // 2`` tokens on each side, itself and the first ``num_global`` tokens, which see all.

    Inputs (q, k, v[, padding][, global q (batch, num_global, …), global k, global v]): with ``has_global_projections`` the
    global tokens look through queries, keys and values of their own. Work is done in blocks of half a window: each meets three
    blocks of keys and the global ones (``dense``), and ``needed`` are the pairs that the mask lets through.
    """

    op_name = "local_global_attention"
    pieces = (("num_heads", "heads"),)
    num_heads: int
    head_dim: int
    scale: float
    window: int
    num_global: int
    has_global_projections: bool = False
    has_padding: bool = True

    @property
    def side(self) -> int:
        """Tokens on each side that a token sees, and those of a block."""
        return self.window // 2

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_heads(self.op_name, inputs, self.num_heads, self.num_heads, self.head_dim, self.head_dim)
        if self.side < 1:
            raise GraphError(f"{self.op_name}: a window of {self.window} has no token on either side")
        return (inputs[0].with_width(self.num_heads * self.head_dim, "heads"),)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        tokens = inputs[1].shape[1]
        if pairs == "needed":
            met = needed_pairs(tokens, self.window, self.num_global)
        else:
            whole = ceil_div(tokens, self.side) * self.side
            met = whole * (3 * self.side + self.num_global) + tokens * self.num_global
        return BATCH * met * (4 * self.num_heads * self.head_dim)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        """Queries padded to whole blocks, the keys and values that each block meets, and the mask, which layers share."""
        q, k, v = (to_heads(tape, x, self.head_dim) for x in inputs[:3])
        batch, heads, seq, dim = q.shape
        places = tape.new((batch, self.num_global), "int64")
        local = self._local(tape, q, k, v, places)
        if self.num_global == 0:
            # Cut off a padded text, rows of several sequences don't lie one behind the other: what follows copies them.
            tokens = tape.number(seq)
            is_whole = tokens % self.side == 0 or tokens == 1 or tape.number(batch) == 1
            return (tape.view if is_whole else tape.copy)(local, inputs[0].shape)
        if self.has_global_projections:
            global_q, global_k, global_v = (to_heads(tape, x, self.head_dim) for x in inputs[-3:])
        else:
            global_q, global_k, global_v = self._rows(tape, q, places), k, v
        found = tape.sdpa(global_q, global_k, global_v)
        return joined_heads(tape, tape.fresh((local, found), (batch, heads, seq, dim), keeps=[places]))

    def _local(self, tape: Tape, q: Held, k: Held, v: Held, places: Held) -> Held:
        batch, heads, seq, dim = q.shape
        side = self.side
        blocks = ceil_div(seq, side)
        met = (batch * blocks, heads, 3 * side + self.num_global, dim)
        queries = tape.copy(q, (batch * blocks, heads, side, dim))
        keys, values = (tape.cat((x, self._rows(tape, x, places)), met) for x in (k, v))
        key = ("mask", "local and global", side, self.num_global, batch, blocks, q.dtype)
        mask = tape.shared_constant(key, (batch * blocks, 1, side, 3 * side + self.num_global), q.dtype)
        found = tape.sdpa(queries, keys, values, mask)
        return tape.view(found, (batch, heads, blocks * side, dim))

    def _rows(self, tape: Tape, x: Held, places: Held) -> Held:
        """Rows at places; each sequence's number is an index, too."""
        sequences = tape.new((x.shape[0], 1), "int64")
        return tape.fresh((x,), (x.shape[0], x.shape[1], self.num_global, x.width), keeps=[places, sequences])


def needed_pairs(tokens: Dim, window: int, num_global: int) -> Dim:
    """Pairs that meet: global tokens with all, others with their window and the global tokens outside of it.

    Token i has min(i, h) tokens on one side of its window and min(n - 1 - i, h) on the other, h = window // 2; of the global
    tokens max(0, min(g, i - h)) lie outside.
    """
    side, first = window // 2, minimum(tokens, num_global)
    near_first = first + _sums(first, side) + _sums(tokens, side) - _sums(tokens - first, side)
    outside = _sums(_positive(tokens - side), num_global) - _sums(_positive(first - side), num_global)
    return first * tokens + two_sided_pairs(tokens, window) - near_first + outside


def _sums(count: Dim, limit: int) -> Dim:
    """min(0, limit) + min(1, limit) + … of ``count`` numbers."""
    below = minimum(count, limit + 1)
    return _triangle(below) + (count - below) * limit


def _triangle(count: Dim) -> Dim:
    """0 + 1 + … of ``count`` numbers in whole numbers: 2ab - b, where a is half of them rounded up and b down."""
    half = ceil_div(count, 2)
    rest = count - half
    return half * rest * 2 - rest


def _positive(number: Dim) -> Dim:
    """The number, or 0 where it is less."""
    return number - minimum(number, 0)
