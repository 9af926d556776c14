"""Softmax attention over its own cache: grouped heads, windows, chunks, sinks, soft caps, unequal key and value widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, CAPACITY, PAST, SEQ, TOTAL, Dim, ceil_div, minimum
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, Param, State, TensorType
from archc.ops.softmax import attend, to_heads


def causal_pairs_twice(
    pairs: Pairs,
    form: Form = "many",
    *,
    window: int | None = None,
    chunk: int | None = None,
    sink_tokens: int = 0,
) -> Dim:
    """Twice the number of query-key pairs of ``seq`` new tokens over ``past`` cached ones (twice, to stay an integer).

    ``needed`` sums what the causal mask, the window or the chunk lets through: the first n tokens together see
    n(n+1)/2 keys, at most W each with a window, only their own chunk with a chunk. ``dense`` is the rectangle of new
    tokens times the rows that are read: all of them, or what the ring holds plus the new ones. One token (``few``)
    over a ring reads just what it needs. A token whose first ``sink_tokens`` tokens stay visible under a window sees
    exactly as many keys as under a window that is longer by them.
    """
    window = None if window is None else window + sink_tokens
    reach = window or chunk
    if pairs == "dense" and not (form == "few" and reach):
        return SEQ * 2 * (TOTAL if reach is None else minimum(PAST, reach) + SEQ)
    if reach is None:
        return PAST * SEQ * 2 + SEQ * SEQ + SEQ

    def seen_twice(tokens: Dim) -> Dim:
        if window is not None:
            inside = minimum(tokens, window)
            return inside * inside + inside + (tokens - inside) * (2 * window)
        whole = ceil_div(tokens + 1, reach) - 1
        rest = tokens - whole * reach
        return whole * (reach * (reach + 1)) + rest * rest + rest

    return seen_twice(TOTAL) - seen_twice(PAST)


@op
class Attention(Op):
    """Causal softmax attention; inputs (q, k, v), widths heads x key_dim, kv_heads x key_dim, kv_heads x value_dim.

    ``window`` W: a token sees itself and the W - 1 before it, and the cache is a ring of W rows. ``sink_tokens`` n, with
    a window only: the first n tokens stay visible, in n rows before the ring. ``chunk`` C: a token sees its own chunk of
    C, the ring has C rows. ``sinks``: one learned logit a head joins the softmax; a full cache then reserves one row,
    where a form of attention may hold the sink as a key. ``slopes``: the score of a key falls by its head's slope a token
    of distance, after the scale and the soft cap (ALiBi). ``has_prefix``: a fourth input (batch,) int64 says how many first
    tokens see each other; they belong into one call. ``has_bias``: a fourth input (batch or 1, heads, seq, keys) is added to the
    scores, minus infinity where a token sees nothing. Pairs of a prefix are counted as causal ones, the least they are.
    ``shares``: two more outputs, the keys and values that new tokens attend to, (batch, kv_heads, rows, width), for
    ``SharedAttention`` of later layers. A ring gives its rows and the new ones; to a single token only what it holds then.
    """

    op_name = "attention"
    pieces = (("num_heads", "heads"), ("num_kv_heads", "kv_heads"), ("slopes", "heads"))
    adds_masks: ClassVar[bool] = True
    """Whether the kernel adds masks to scores, as numbers."""
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    sink_tokens: int = 0
    chunk: int | None = None
    sinks: bool = False
    soft_cap: float | None = None
    slopes: tuple[float, ...] | None = None
    has_prefix: bool = False
    has_bias: bool = False
    shares: bool = False
    cache_dtype: str = MODEL_DTYPE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        q, k, v = inputs[:3]
        if self.slopes is not None and len(self.slopes) != self.num_heads:
            raise GraphError(f"attention: {len(self.slopes)} slopes for {self.num_heads} heads")
        want = (self.num_heads * self.key_dim, self.num_kv_heads * self.key_dim, self.num_kv_heads * self.value_dim)
        if (q.width, k.width, v.width) != want:
            raise GraphError(f"attention: q, k, v are {q.width}, {k.width}, {v.width} wide, not {want}")
        if self.num_heads % self.num_kv_heads:
            raise GraphError(
                f"attention: {self.num_heads} heads are no multiple of {self.num_kv_heads} key-value heads"
            )
        out = q.with_width(self.num_heads * self.value_dim, "heads")
        return (out, *self.shared_rows(q.dtype)) if self.shares else (out,)

    def shared_rows(self, dtype: str) -> tuple[TensorType, TensorType]:
        """Types of the keys and values that new tokens attend to, as many rows as several tokens read."""
        reach = self.ring_rows()
        rows: Dim = TOTAL if reach is None else minimum(PAST, reach) + SEQ
        key, value = (
            TensorType((BATCH, self.num_kv_heads, rows, dim), dtype) for dim in (self.key_dim, self.value_dim)
        )
        return key, value

    def ring_rows(self) -> int | None:
        """Rows of the cache that no text exceeds: sink tokens and window, or a chunk; None where it grows."""
        return self.chunk if self.window is None else self.sink_tokens + self.window

    def empties_ring(self, role: str) -> bool:
        return self.window is None and self.chunk is not None

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        if not self.sinks:
            return {}
        return {"sinks": Param("sinks", (self.num_heads,), axes=("heads",), init="zeros")}

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        reach = self.ring_rows()
        rows: Dim = TOTAL if reach is None else minimum(TOTAL, reach)
        held: Dim = CAPACITY if reach is None else reach

        def state(name: str, dim: int) -> State:
            return State(
                name,
                (BATCH, self.num_kv_heads, rows, dim),
                (BATCH, self.num_kv_heads, held, dim),
                growth="append" if reach is None else "ring",
                role="kv",
                dtype=self.cache_dtype,
                axes=(None, "kv_heads", None, None),
                token_dim=2,
                reserved=1 if self.sinks and reach is None else 0,
            )

        return {"key": state("key", self.key_dim), "value": state("value", self.value_dim)}

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        twice = causal_pairs_twice(pairs, form, window=self.window, chunk=self.chunk, sink_tokens=self.sink_tokens)
        return BATCH * twice * (self.num_heads * (self.key_dim + self.value_dim))

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held | tuple[Held, ...]:
        q, k, v, *further = inputs
        q, k, v = to_heads(tape, q, self.key_dim), to_heads(tape, k, self.key_dim), to_heads(tape, v, self.value_dim)
        o = self.saves_of_rows(tape, q, k, v, further, weights)
        return (o, k, v) if self.shares else o

    def saves_of_rows(
        self, tape: Tape, q: Held, k: Held, v: Held, further: Sequence[Held], weights: Mapping[str, Held]
    ) -> Held:
        """New tokens among themselves, heads apart, (batch, seq, heads x value_dim)."""
        return self.kernel_saves(tape, q, k, v, self._mask_of_new(tape, q, further), weights)

    def kernel_saves(
        self, tape: Tape, q: Held, k: Held, v: Held, mask: Held | None, weights: Mapping[str, Held]
    ) -> Held:
        """What the torch kernel keeps, under a mask or causal."""
        return attend(tape, q, k, v, mask=mask, sinks=weights.get("sinks"), soft_cap=self.soft_cap)

    def _mask_of_new(self, tape: Tape, q: Held, further: Sequence[Held]) -> Held | None:
        """Layers share it, one a length of the prefix."""
        if self.has_bias:
            return further[0]
        seq, reach = q.shape[2], self.ring_rows()
        if self.slopes is None and not further and (reach is None or tape.number(seq) <= reach):
            return None
        heads = 1 if self.slopes is None else self.num_heads
        rows = further[0].shape[0] if further else 1
        dtype = q.dtype if self.adds_masks else "bool"
        key = ("mask", self.slopes, self.window, self.chunk, self.sink_tokens, bool(further), seq, dtype)
        return tape.shared_constant(key, (rows, heads, seq, seq), dtype)


@op
class LatentAttention(Op):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434); inputs (q, latent, shared key).

    The cache holds one row a token, the normed latent and the shared key. The op owns ``kv_b_proj``: ``many`` expands
    keys and values from the rows, ``few`` absorbs the projection into the query and the output. ``window`` and
    ``sink_tokens`` bound the rows as those of ``Attention``.
    """

    op_name = "latent_attention"
    pieces = (("num_heads", "heads"),)
    num_heads: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    sink_tokens: int = 0
    cache_dtype: str = MODEL_DTYPE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        q, latent, shared = inputs
        want = (self.num_heads * (self.nope_dim + self.rope_dim), self.kv_lora_rank, self.rope_dim)
        if (q.width, latent.width, shared.width) != want:
            raise GraphError(
                f"latent_attention: q, latent, key are {q.width}, {latent.width}, {shared.width} wide, not {want}"
            )
        return (q.with_width(self.num_heads * self.value_dim, "heads"),)

    def ring_rows(self) -> int | None:
        """Rows of the cache that no text exceeds, sink tokens and window; None where it grows."""
        return None if self.window is None else self.sink_tokens + self.window

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        rows = self.num_heads * (self.nope_dim + self.value_dim)
        return {"kv_b_proj": Param("kv_b_proj.weight", (rows, self.kv_lora_rank), axes=("heads", None))}

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        width, reach = self.kv_lora_rank + self.rope_dim, self.ring_rows()
        return {
            "latent": State(
                "latent",
                (BATCH, 1, TOTAL if reach is None else minimum(TOTAL, reach), width),
                (BATCH, 1, CAPACITY if reach is None else reach, width),
                growth="append" if reach is None else "ring",
                role="kv",
                dtype=self.cache_dtype,
                token_dim=2,
            )
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        heads, rank, nope, rope, value = self.num_heads, self.kv_lora_rank, self.nope_dim, self.rope_dim, self.value_dim
        twice = causal_pairs_twice(pairs, form, window=self.window, sink_tokens=self.sink_tokens)
        if form == "many":
            reach = self.ring_rows()
            read = TOTAL if reach is None else minimum(PAST, reach) + SEQ
            return BATCH * read * (2 * rank * heads * (nope + value)) + BATCH * twice * (heads * (nope + rope + value))
        return BATCH * SEQ * (2 * heads * rank * (nope + value)) + BATCH * twice * (heads * (2 * rank + rope))

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        q, latent, shared = inputs
        seq, reach, mask = q.shape[1], self.ring_rows(), None
        if reach is not None and tape.number(seq) > reach:
            key = ("mask", "latent", self.window, self.sink_tokens, seq, q.dtype)
            mask = tape.shared_constant(key, (1, 1, seq, seq), q.dtype)
        return expanded(
            tape,
            q,
            latent,
            shared,
            weights["kv_b_proj"],
            nope_dim=self.nope_dim,
            value_dim=self.value_dim,
            mask=mask,
        )


def expanded(
    tape: Tape,
    q: Held,
    latent: Held,
    shared: Held,
    kv_b_proj: Held,
    *,
    nope_dim: int,
    value_dim: int,
    mask: Held | None = None,
) -> Held:
    """Keys and values made from latent rows, and attention to them: keys are copies, values views of what is projected."""
    q = to_heads(tape, q, nope_dim + shared.width)
    kv = to_heads(tape, tape.linear(latent, kv_b_proj, axis="heads"), nope_dim + value_dim)
    k = tape.cat((kv, shared), (*kv.shape[:-1], q.width))
    return attend(tape, q, k, tape.view(kv, (*kv.shape[:-1], value_dim)), mask=mask)
