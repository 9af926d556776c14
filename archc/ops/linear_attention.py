"""Linear attention with a fixed state: the gated delta rule, plain gated writes, a decay gate, and the short convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, SEQ, Dim, ceil_div
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, Param, State, TensorType
from archc.ops.elementwise import activated
from archc.ops.linear_rules import gated, gated_delta, repeated

CHUNK = 64
"""Tokens a chunk of the chunked form, the length that the papers count with."""


def gated_delta_flops(key_dim: int, value_dim: int, form: Form, pairs: Pairs) -> Dim:
    """FLOPs of one head of one sequence.

    ``few``: three products of the K x V state a token. ``many``: for a chunk of r tokens the scores of keys and of
    queries, the substitution that solves (I + A), and the three products with the state; ``needed`` counts lower
    triangles, ``dense`` whole chunks of 64 and whole squares. Gated DeltaNet (arXiv 2412.06464), KDA (arXiv 2510.26692).
    """
    k, v = key_dim, value_dim
    if form == "few":
        return SEQ * (6 * k * v)
    chunks = ceil_div(SEQ, CHUNK)
    if pairs == "dense":
        square = CHUNK * CHUNK
        return chunks * (4 * square * k + 2 * square * (k + v) + 2 * square * v + 6 * CHUNK * k * v)

    def one_chunk(tokens: Dim) -> Dim:
        below, upto = tokens * tokens - tokens, tokens * tokens + tokens
        return below * (2 * k + v) + upto * (k + v) + tokens * (6 * k * v)

    full = chunks - 1
    return full * one_chunk(CHUNK) + one_chunk(SEQ - full * CHUNK)


def gated_flops(heads: int, key_heads: int, key_dim: int, value_dim: int, form: Form, pairs: Pairs) -> Dim:
    """FLOPs of one sequence under the plain gated rule, all heads.

    ``few``: two products of the K x V state a token. ``many``: for a chunk of r tokens the scores, once a key head, their
    product with the values, and the two products with the state; ``needed`` counts lower triangles, ``dense`` whole chunks
    of 64 and whole squares. Lightning attention (arXiv 2401.04658), Mamba-2 (arXiv 2405.21060), GLA (arXiv 2312.06635).
    """
    products = heads * 4 * key_dim * value_dim
    if form == "few":
        return SEQ * products
    a_pair = 2 * (key_heads * key_dim + heads * value_dim)
    chunks = ceil_div(SEQ, CHUNK)
    if pairs == "dense":
        return chunks * (CHUNK * CHUNK * a_pair + CHUNK * products)

    def one_chunk(tokens: Dim) -> Dim:
        return (tokens * tokens + tokens) * (a_pair // 2) + tokens * products

    full = chunks - 1
    return full * one_chunk(CHUNK) + one_chunk(SEQ - full * CHUNK)


RULES = ("gated_delta", "gated")
"""Names of update rules, which are those of onnxruntime's LinearAttention."""


@op
class LinearAttention(Op):
    """A matrix state that decays and is written to, (batch, heads, K, V), one of ``RULES``; float32 whatever the model's dtype.

    * ``gated_delta``, inputs (q, k, v, log decay, beta): ``S = e^g S; S += k (beta (v - S^T k))^T; o = scale S^T q``. A decay
      as wide as beta is one per head (Gated DeltaNet), one of heads x K one per key channel (KDA).
    * ``gated``, inputs (q, k, v, log decay): ``S = e^g S + k v^T; o = scale S^T q``, a decay a head
      (lightning attention, Mamba-2, RetNet) or, heads x K wide, one a key channel (GLA).

    There are ``num_heads`` heads of values, decays and states; a head of queries and keys serves the next
    num_heads / num_key_heads of them.
    """

    op_name = "linear_attention"
    pieces = (("num_heads", "heads"), ("num_key_heads", "heads"))
    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    scale: float
    rule: str = "gated_delta"
    state_dtype: str = "float32"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        heads, key_heads = self.num_heads, self.num_key_heads
        if self.rule not in RULES:
            raise GraphError(f"linear_attention: rule {self.rule!r} is unknown; known: {', '.join(RULES)}")
        wanted = 5 if self.rule == "gated_delta" else 4
        if len(inputs) != wanted:
            raise GraphError(f"linear_attention: rule {self.rule} has {wanted} inputs, {len(inputs)} are given")
        q, k, v, decay = inputs[:4]
        if key_heads < 1 or heads % key_heads:
            raise GraphError(f"linear_attention: {heads} heads are no multiple of {key_heads} key heads")
        keys = key_heads * self.key_dim
        betas = inputs[4].width if len(inputs) > 4 else heads
        if (q.width, k.width, v.width, betas) != (keys, keys, heads * self.value_dim, heads):
            given = ", ".join(str(kind) for kind in (*inputs[:3], *inputs[4:]))
            raise GraphError(
                f"linear_attention: {given} don't fit {key_heads} key heads of {self.key_dim} "
                f"and {heads} heads of {self.value_dim}"
            )
        if decay.width not in (heads, heads * self.key_dim):
            raise GraphError(
                f"linear_attention: a decay of width {decay.width} is neither per head nor per key channel"
            )
        return (v.with_width(v.width, "heads"),)

    def units(self, inputs: Sequence[TensorType]) -> dict[str, int]:
        """A head of keys stays with the heads of values that it serves."""
        return {"heads": self.num_key_heads}

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        shape = (BATCH, self.num_heads, self.key_dim, self.value_dim)
        axes = (None, "heads", None, None)
        return {
            "recurrent_state": State(
                "recurrent_state", shape, shape, growth="fixed", role="recurrent", dtype=self.state_dtype, axes=axes
            )
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        if self.rule == "gated":
            heads, key_heads = self.num_heads, self.num_key_heads
            if inputs[3].width != heads:
                # Decays of its own give each head scores of its own, whatever keys it shares.
                key_heads = heads
            return BATCH * gated_flops(heads, key_heads, self.key_dim, self.value_dim, form, pairs)
        return BATCH * gated_delta_flops(self.key_dim, self.value_dim, form, pairs) * self.num_heads

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        widths = (self.key_dim, self.key_dim, self.value_dim)
        q, k, v = (
            tape.view(x, (*x.shape[:2], x.width // width, width)) for x, width in zip(inputs, widths, strict=False)
        )
        decay, group = inputs[3], self.num_heads // self.num_key_heads
        if decay.width != self.num_heads:
            decay = tape.view(decay, (*decay.shape[:2], self.num_heads, self.key_dim))
        if self.rule == "gated_delta" or decay is not inputs[3]:
            q, k = (repeated(tape, x, group) for x in (q, k))
        rule = (
            gated_delta(tape, q, k, v, decay, inputs[4]) if self.rule == "gated_delta" else gated(tape, q, k, v, decay)
        )
        return tape.view(rule, inputs[2].shape)


@op
class LogDecay(Op):
    """``-exp(A_log) softplus(x + dt_bias)`` in float32, a head or a channel by width.

    With ``floor`` b < 0 it is ``b sigmoid(exp(A_log) (x + dt_bias))``, so never below b.
    """

    op_name = "log_decay"
    pieces = (("num_heads", "heads"),)
    num_heads: int
    floor: float | None = None

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].width % self.num_heads:
            raise GraphError(f"log_decay: width {inputs[0].width} is no multiple of {self.num_heads} heads")
        return (TensorType(inputs[0].shape, "float32", inputs[0].axis),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        heads, width = self.num_heads, inputs[0].width
        return {
            "A_log": Param("A_log", (heads,), axes=("heads",), init="a_log", dtype="float32"),
            "dt_bias": Param("dt_bias", (width,), axes=(inputs[0].axis,), init="dt_bias", dtype="float32"),
        }

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x = inputs[0]
        rate = tape.copy(tape.of_output(tape.cast(weights["A_log"], "float32")), (x.width,))
        shifted = tape.add(tape.cast(x, "float32"), tape.cast(weights["dt_bias"], "float32"))
        if self.floor is not None:
            return tape.scaled(tape.of_output(tape.mul(shifted, rate)))
        return tape.mul(tape.of_input(shifted), tape.scaled(rate))


@op
class FixedDecay(Op):
    """Log decays that no token changes, one a head, as wide a value as those that do: (batch, seq, heads), float32.

    The input, any value of the tokens, gives the shape.
    """

    op_name = "fixed_decay"
    pieces = (("values", "heads"),)
    values: tuple[float, ...]

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if any(value > 0 for value in self.values):
            raise GraphError(f"fixed_decay: {max(self.values)} is no log of a decay; all should be at most 0")
        return (TensorType((*inputs[0].shape[:-1], len(self.values)), "float32", "heads"),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        numbers = tape.shared_constant(("numbers", self.values), (len(self.values),), "float32")
        return tape.view(numbers, (*inputs[0].shape[:-1], len(self.values)))


@op
class CausalConv(Op):
    """Depthwise convolution over time of several named streams, each followed by ``function``; one state for all.

    Weight of a stream (channels, 1, kernel); the state keeps the last kernel - 1 inputs, (batch, kernel - 1, all channels).
    """

    op_name = "causal_conv"
    pieces = ()
    streams: tuple[str, ...]
    kernel: int
    function: str | None = "silu"
    bias: bool = False
    cache_dtype: str = MODEL_DTYPE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if len(inputs) != len(self.streams):
            raise GraphError(f"causal_conv: {len(self.streams)} streams are named, {len(inputs)} given")
        return tuple(inputs)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        params: dict[str, Param] = {}
        for stream, kind in zip(self.streams, inputs, strict=True):
            name = f"{stream}.weight"
            params[name] = Param(name, (kind.width, 1, self.kernel), axes=(kind.axis, None, None), init="conv")
            if self.bias:
                params[f"{stream}.bias"] = Param(f"{stream}.bias", (kind.width,), axes=(kind.axis,), init="zeros")
        return params

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        shape = (BATCH, self.kernel - 1, sum(kind.width for kind in inputs))
        return {
            "conv_state": State(
                "conv_state",
                shape,
                shape,
                growth="fixed",
                role="convolution",
                dtype=self.cache_dtype,
                axes=(None, None, inputs[0].axis),
            )
        }

    def cut_state(
        self, role: str, state: State, cut: Callable[[int, str | None], int], inputs: Sequence[TensorType]
    ) -> State:
        """The streams side by side, each cut along its own axis."""
        shape = (BATCH, self.kernel - 1, sum(cut(kind.width, kind.axis) for kind in inputs))
        return state.with_shapes(shape, shape)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return BATCH * SEQ * (2 * self.kernel * sum(kind.width for kind in inputs))

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> tuple[Held, ...]:
        outputs: list[Held] = []
        for stream, x in zip(self.streams, inputs, strict=True):
            past = tape.new((1,), x.dtype)
            y = tape.product(tape.fresh((x, weights[f"{stream}.weight"]), keeps=(x, past)))
            if self.bias:
                y = tape.add(y, weights[f"{stream}.bias"])
            is_fused = not self.bias and self.function == "silu"
            outputs.append(y if is_fused or self.function is None else activated(tape, self.function, y))
        return tuple(outputs)
