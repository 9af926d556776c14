"""Softmax attention that sees everything, attention to an encoder, and the table of biases by distance (T5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import ClassVar

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, MEMORY, TOTAL, Dim, minimum
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, Param, State, TensorType
from archc.ops.softmax import attend, to_heads


def two_sided_pairs(tokens: Dim, window: int | None) -> Dim:
    """Pairs of ``tokens`` tokens that see each other, no further than ``window // 2`` on each side.

    Each of n tokens sees itself and min(i, h) tokens on either side at distance i from its end, h = window // 2: the sums
    over both sides are a(a - 1)/2 + (n - a)h each, where a = min(n, h + 1).
    """
    if window is None:
        return tokens * tokens
    side = window // 2
    near = minimum(tokens, side + 1)
    return tokens + near * near - near + (tokens - near) * (2 * side)


def check_heads(name: str, inputs: Sequence[TensorType], heads: int, kv_heads: int, key: int, value: int) -> None:
    """Raise a GraphError unless q, k and v have the widths of so many heads."""
    q, k, v = inputs[:3]
    want = (heads * key, kv_heads * key, kv_heads * value)
    if (q.width, k.width, v.width) != want:
        raise GraphError(f"{name}: q, k, v are {q.width}, {k.width}, {v.width} wide, not {want}")
    if heads % kv_heads:
        raise GraphError(f"{name}: {heads} heads are no multiple of {kv_heads} key-value heads")


@op
class BidirectionalAttention(Op):
    """Softmax attention among all tokens of a call; inputs (q, k, v[, padding][, bias]), no cache.

    ``padding`` (batch, seq), int64, is 1 for tokens and 0 for what nobody sees, left or right of them. ``bias``
    (batch or 1, heads, seq, seq) is added to the scores and knows the padding. ``window`` W: a token sees W // 2 tokens on
    each side and itself. ``slopes``: the score of a key falls by its head's slope a token of distance, either way.
    """

    op_name = "bidirectional_attention"
    pieces = (("num_heads", "heads"), ("num_kv_heads", "kv_heads"), ("slopes", "heads"))
    adds_masks: ClassVar[bool] = True
    """Whether the kernel adds masks to scores, as numbers."""
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    slopes: tuple[float, ...] | None = None
    has_padding: bool = True
    has_bias: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_heads(self.op_name, inputs, self.num_heads, self.num_kv_heads, self.key_dim, self.value_dim)
        if self.slopes is not None and len(self.slopes) != self.num_heads:
            raise GraphError(f"{self.op_name}: {len(self.slopes)} slopes for {self.num_heads} heads")
        if self.has_bias and (self.window is not None or self.slopes is not None):
            raise GraphError(f"{self.op_name}: a bias on the scores has no place beside a window or slopes")
        return (inputs[0].with_width(self.num_heads * self.value_dim, "heads"),)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        tokens = inputs[1].shape[1]
        seen = two_sided_pairs(tokens, self.window if pairs == "needed" else None)
        return BATCH * seen * (2 * self.num_heads * (self.key_dim + self.value_dim))

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        q, k, v, *further = inputs
        mask = further[0] if self.has_bias else self._mask(tape, q)
        q, k, v = to_heads(tape, q, self.key_dim), to_heads(tape, k, self.key_dim), to_heads(tape, v, self.value_dim)
        return self.kernel_saves(tape, q, k, v, mask, weights)

    def _mask(self, tape: Tape, q: Held) -> Held | None:
        """Layers share it; there is no padding."""
        seq = q.shape[1]
        if self.slopes is None and (self.window is None or tape.number(seq) <= self.window // 2 + 1):
            return None
        heads = 1 if self.slopes is None else self.num_heads
        dtype = q.dtype if self.adds_masks else "bool"
        key = ("mask", "bidirectional", self.window, self.slopes, seq, dtype)
        return tape.shared_constant(key, (1, heads, seq, seq), dtype)

    def kernel_saves(
        self, tape: Tape, q: Held, k: Held, v: Held, mask: Held | None, weights: Mapping[str, Held]
    ) -> Held:
        """What the torch kernel keeps of heads."""
        return attend(tape, q, k, v, mask=mask, soft_cap=self.soft_cap)


@op
class CrossAttention(Op):
    """Softmax attention to an encoder; inputs q (batch, seq, …), k and v (batch, source, …)[, padding (batch, memory)].

    Keys and values are kept, a row a token of the encoder, written when that is run and read while the decoder goes on.
    """

    op_name = "cross_attention"
    pieces = (("num_heads", "heads"), ("num_kv_heads", "kv_heads"))
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    soft_cap: float | None = None
    has_padding: bool = True
    cache_dtype: str = MODEL_DTYPE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_heads(self.op_name, inputs, self.num_heads, self.num_kv_heads, self.key_dim, self.value_dim)
        return (inputs[0].with_width(self.num_heads * self.value_dim, "heads"),)

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        return {
            role: source_state(role, self.num_kv_heads, dim, self.cache_dtype)
            for role, dim in (("key", self.key_dim), ("value", self.value_dim))
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        pairs_seen = inputs[0].shape[1] * MEMORY
        return BATCH * pairs_seen * (2 * self.num_heads * (self.key_dim + self.value_dim))

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        q, k, v = inputs[:3]
        q, k, v = to_heads(tape, q, self.key_dim), to_heads(tape, k, self.key_dim), to_heads(tape, v, self.value_dim)
        return self.kernel_saves(tape, q, k, v, weights)

    def kernel_saves(self, tape: Tape, q: Held, k: Held, v: Held, weights: Mapping[str, Held]) -> Held:
        """What the torch kernel keeps of heads."""
        return attend(tape, q, k, v, soft_cap=self.soft_cap)


def source_state(name: str, heads: int, dim: int, dtype: str) -> State:
    """Rows of an encoder's tokens, (batch, heads, memory, dim)."""
    shape = (BATCH, heads, MEMORY, dim)
    axes = (None, "kv_heads", None, None)
    return State(name, shape, shape, growth="source", role="kv", dtype=dtype, axes=axes, token_dim=2)


@op
class RelativeBias(Op):
    """A learned number for each head and bucket of distance (T5, arXiv 1910.10683), added to scores.

    Inputs (positions (batch, seq)[, padding (batch, seq) | prefix_length (batch,)]); output (batch, heads, seq, keys),
    minus infinity where ``mask`` (causal, bidirectional, prefix) lets a token see nothing, so that it is made once for all
    layers. Half of the buckets are single distances, the others grow with the logarithm up to ``max_distance``;
    bidirectional attention gives each side half of them.
    """

    op_name = "relative_bias"
    pieces = (("num_heads", "heads"),)
    takes_step: ClassVar[bool] = True
    num_heads: int
    num_buckets: int
    max_distance: int
    mask: str = "causal"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        sides = 2 if self.mask == "bidirectional" else 1
        if self.num_buckets % (2 * sides) or self.max_distance <= self.num_buckets // (2 * sides):
            raise GraphError(
                f"{self.op_name}: {self.num_buckets} buckets for {self.mask} attention should be a multiple of {2 * sides}, "
                f"and max_distance, {self.max_distance}, more than {self.num_buckets // (2 * sides)}"
            )
        batch, seq = inputs[0].shape
        keys = seq if self.mask == "bidirectional" else TOTAL
        return (TensorType((batch, self.num_heads, seq, keys)),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return {"weight": Param("weight", (self.num_buckets, self.num_heads), axes=(None, "heads"))}

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        """The bucket of each pair, and the mask: a bias that is added keeps none of its numbers."""
        rows, seq = inputs[0].shape
        buckets = tape.new((rows, seq, seq), "int64")
        bias = tape.take(weights["weight"], buckets, (rows, seq, seq, self.num_heads))
        bias = tape.view(bias, (rows, self.num_heads, seq, seq))
        if self.mask == "bidirectional":
            return bias
        several = inputs[1].shape[0] if self.mask == "prefix" else rows
        bias = tape.view(bias, (several, self.num_heads, seq, seq))
        return tape.masked_fill(bias, tape.new((several, 1, seq, seq), "bool"))


def bucket_of(distance: int, *, num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The bucket of a key that stands ``distance`` tokens behind the query (negative: before it), in plain arithmetic.

    What torch and the exporter compute for whole matrices is compared with this.
    """
    bucket = 0
    steps = max(-distance, 0)
    if bidirectional:
        num_buckets //= 2
        bucket = num_buckets if distance > 0 else 0
        steps = abs(distance)
    exact = num_buckets // 2
    if steps < exact:
        return bucket + steps
    spread = exact + int(log(steps / exact) / log(max_distance / exact) * (num_buckets - exact))
    return bucket + min(spread, num_buckets - 1)
