"""The builder that a kind's ``define`` sees: one typed function an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.graph.attention import AttentionVocabulary
from archc.ir.size import Dim
from archc.ir.values import MODEL_DTYPE, Param, Value
from archc.ops.elementwise import (
    Activation,
    Add,
    Cast,
    Concat,
    Constant,
    GatedActivation,
    Mul,
    Scale,
    SoftCap,
    Split,
)
from archc.ops.linear import Embedding, Linear
from archc.ops.linear_attention import CausalConv, FixedDecay, LinearAttention, LogDecay
from archc.ops.moe import Experts, Route
from archc.ops.norm import GatedGroupNorm, GatedNorm, L2Norm, LayerNorm, RMSNorm
from archc.ops.opaque import Opaque, Plain, plain_of, weight_of
from archc.ops.position import LearnedPositions, Sinusoids
from archc.ops.rotary import QueryTemperature, RopeTable, Rotary
from archc.ops.state_space import StateSpace


class Builder(AttentionVocabulary):
    """What ``define`` calls; ``AttentionVocabulary`` has what surrounds the open stack, and softmax attention."""

    def linear(
        self,
        name: str,
        x: Value,
        width: int,
        *,
        bias: bool = False,
        axis: str | None = None,
        dtype: str = MODEL_DTYPE,
        weight: Param | None = None,
    ) -> Value:
        """``x W^T + b`` to (…, width). ``axis`` labels the output; a given ``weight`` is shared with the op that owns it.

        Raises:
            GraphError: the given weight is not (width, x.width).
        """
        if weight is not None and weight.shape != (width, x.width):
            raise GraphError(f"{self.path or 'model'}: {name}: {weight} is no weight of {x.width} -> {width}")
        op = Linear(width=width, bias=bias, axis=axis, dtype=dtype, tied=weight is not None)
        return self.emit(op, (x,), name=name, weights=None if weight is None else {"weight": weight})[0]

    def embedding(
        self, name: str, ids: Value, num_embeddings: int, width: int, *, table: Param | None = None
    ) -> tuple[Value, Param]:
        """Rows of a table by id, and the table itself, for a head that is tied to it; a given ``table`` is another op's.

        Raises:
            GraphError: the given table is not (num_embeddings, width).
        """
        if table is not None and table.shape != (num_embeddings, width):
            raise GraphError(
                f"{name}: {table} is no table of {num_embeddings} rows of {width}; state an embedding here"
            )
        op = Embedding(num_embeddings=num_embeddings, width=width, tied=table is not None)
        (x,) = self.emit(op, (ids,), name=name, weights=None if table is None else {"weight": table})
        node = self._frames[-1].body.items[-1]
        return x, node.params["weight"]  # type: ignore[union-attr]

    def rms_norm(
        self,
        name: str,
        x: Value,
        *,
        eps: float,
        weight_offset: float = 0.0,
        head_dim: int | None = None,
        weight: bool = True,
    ) -> Value:
        """RMS norm over the last dimension, or over each head of it; without ``weight`` it needs no name."""
        op = RMSNorm(eps=eps, weight_offset=weight_offset, head_dim=head_dim, weight=weight)
        return self.emit(op, (x,), name=name)[0]

    def layer_norm(self, name: str, x: Value, *, eps: float, bias: bool = True, head_dim: int | None = None) -> Value:
        """Layer norm over the last dimension, or over each head of it."""
        return self.emit(LayerNorm(eps=eps, bias=bias, head_dim=head_dim), (x,), name=name)[0]

    def gated_norm(self, name: str, x: Value, gate: Value, *, head_dim: int, eps: float, act: str = "sigmoid") -> Value:
        """``rms_norm(x) w act(gate)``, a head at a time."""
        return self.emit(GatedNorm(eps=eps, head_dim=head_dim, function=act), (x, gate), name=name)[0]

    def gated_group_norm(
        self, name: str, x: Value, gate: Value, *, groups: int, eps: float, act: str = "silu"
    ) -> Value:
        """``rms_norm(x act(gate)) w``, each of ``groups`` slices by its own mean square."""
        return self.emit(GatedGroupNorm(eps=eps, groups=groups, function=act), (x, gate), name=name)[0]

    def l2_norm(self, x: Value, *, head_dim: int, eps: float = 1e-6) -> Value:
        """``x / sqrt(sum x^2 + eps)``, a head at a time."""
        return self.emit(L2Norm(head_dim=head_dim, eps=eps), (x,))[0]

    def add(self, left: Value, right: Value) -> Value:
        """The sum; both operands must be cut along the same axis."""
        return self.emit(Add(), (left, right))[0]

    def mul(self, left: Value, right: Value) -> Value:
        """The product; a width of 1 is broadcast."""
        return self.emit(Mul(), (left, right))[0]

    def scale(self, x: Value, factor: float) -> Value:
        """``factor x``; nothing is placed for a factor of 1."""
        return x if factor == 1.0 else self.emit(Scale(factor=factor), (x,))[0]

    def activation(self, x: Value, function: str) -> Value:
        """An elementwise function by name."""
        return self.emit(Activation(function=function), (x,))[0]

    def sigmoid(self, x: Value) -> Value:
        """The logistic function."""
        return self.activation(x, "sigmoid")

    def gated_activation(self, gate: Value, up: Value, gating: GatedActivation) -> Value:
        """``act(alpha gate) gate (up + offset)``, clamped where the gating says so."""
        return self.emit(gating, (gate, up))[0]

    def soft_cap(self, x: Value, cap: float) -> Value:
        """``cap tanh(x / cap)``."""
        return self.emit(SoftCap(cap=cap), (x,))[0]

    def cast(self, x: Value, dtype: str) -> Value:
        """Another dtype by torch's name."""
        return self.emit(Cast(dtype=dtype), (x,))[0]

    def constant(self, values: Sequence[float], *, axis: str | None = None) -> Value:
        """Fixed numbers, float32."""
        return self.emit(Constant(values=tuple(values), axis=axis), ())[0]

    def split(self, x: Value, sizes: Sequence[int]) -> tuple[Value, ...]:
        """Pieces of the last dimension."""
        return self.emit(Split(sizes=tuple(sizes)), (x,))

    def concat(self, *values: Value) -> Value:
        """Values joined along the last dimension."""
        return self.emit(Concat(), values)[0]

    def rope_table(self, frequencies: Sequence[float], factor: float = 1.0) -> tuple[Value, Value]:
        """cos and sin of every position, (batch, seq, dim / 2) in float32: once a configuration, at the root."""
        op = RopeTable(frequencies=tuple(frequencies), factor=factor)
        cos, sin = self.hoist(op, (self.sources["positions"],), name="rope")
        return cos, sin

    def rotary(
        self, x: Value, table: tuple[Value, Value], *, head_dim: int, dim: int, offset: int = 0, style: str = "half"
    ) -> Value:
        """``dim`` channels of each head turned, from ``offset``."""
        return self.emit(Rotary(head_dim=head_dim, dim=dim, offset=offset, style=style), (x, *table))[0]

    def learned_positions(self, name: str, width: int, *, offset: int = 0) -> Value:
        """The row of each position, (batch, seq, width), of a table of ``max_position_embeddings`` rows, ``offset`` more before.

        Raises:
            GraphError: the spec does not say how many positions there are.
        """
        if self.max_position_embeddings is None:
            raise GraphError(
                f"{name}: a table of learned positions has a row for each, and the spec does not say how many; "
                "state max_position_embeddings"
            )
        op = LearnedPositions(num_positions=self.max_position_embeddings, width=width, offset=offset)
        return self.emit(op, (self.sources["positions"],), name=name)[0]

    def sinusoids(self, x: Value) -> Value:
        """Sines and cosines of every position, like x: once a configuration, at the root."""
        return self.hoist(Sinusoids(), (self.sources["positions"], x), name="sinusoids")[0]

    def query_temperature(self, x: Value, *, scale: float, floor: int) -> Value:
        """Queries scaled by the logarithm of their position."""
        return self.emit(QueryTemperature(scale=scale, floor=floor), (x, self.sources["positions"]))[0]

    def causal_conv(
        self,
        streams: Sequence[str],
        values: Sequence[Value],
        *,
        kernel: int,
        act: str | None = "silu",
        bias: bool = False,
        name: str = "conv",
    ) -> tuple[Value, ...]:
        """Short depthwise convolutions over time, one weight a stream and one state for all."""
        op = CausalConv(streams=tuple(streams), kernel=kernel, function=act, bias=bias, cache_dtype=self.cache_dtype)
        return self.emit(op, tuple(values), name=name)

    def log_decay(self, name: str, x: Value, *, num_heads: int, floor: float | None = None) -> Value:
        """The log decay of a linear mixer, float32."""
        return self.emit(LogDecay(num_heads=num_heads, floor=floor), (x,), name=name)[0]

    def fixed_decay(self, x: Value, values: Sequence[float]) -> Value:
        """Log decays that are the same for every token of x, one a head."""
        return self.emit(FixedDecay(values=tuple(values)), (x,))[0]

    def linear_attention(
        self,
        name: str,
        q: Value,
        k: Value,
        v: Value,
        decay: Value,
        beta: Value,
        *,
        head_dim: int,
        scale: float | None = None,
        rule: str = "gated_delta",
    ) -> Value:
        """The delta rule with decay over its own state, (batch, seq, heads x value_dim); scale defaults to 1/sqrt(head_dim).

        ``head_dim`` is that of keys; ``beta`` has a channel a head, so its width says how many heads of values there are.
        """
        heads = beta.width
        op = LinearAttention(
            num_heads=heads,
            num_key_heads=k.width // head_dim,
            key_dim=head_dim,
            value_dim=v.width // heads,
            scale=head_dim**-0.5 if scale is None else scale,
            rule=rule,
            state_dtype=self.state_dtype,
        )
        return self.emit(op, (q, k, v, decay, beta), name=name)[0]

    def gated_attention(
        self, name: str, q: Value, k: Value, v: Value, decay: Value, *, head_dim: int, scale: float = 1.0
    ) -> Value:
        """``S = e^decay S + k v^T; scale S^T q`` over its own state, (batch, seq, heads x value_dim).

        ``head_dim`` is that of keys; ``decay``, the log of it, has a channel a head of values, so its width says how many
        there are.
        """
        heads = decay.width
        op = LinearAttention(
            num_heads=heads,
            num_key_heads=k.width // head_dim,
            key_dim=head_dim,
            value_dim=v.width // heads,
            scale=scale,
            rule="gated",
            state_dtype=self.state_dtype,
        )
        return self.emit(op, (q, k, v, decay), name=name)[0]

    def state_space(
        self,
        name: str,
        x: Value,
        b: Value,
        c: Value,
        dt: Value,
        *,
        n_groups: int,
        time_step_limit: tuple[float, float] | None = None,
    ) -> Value:
        """Mamba-2's state space over its own state, like x; ``dt`` has a channel a head, before its bias and softplus."""
        op = StateSpace(
            num_heads=dt.width,
            head_dim=x.width // dt.width,
            n_groups=n_groups,
            state_size=b.width // n_groups,
            time_step_limit=time_step_limit,
            state_dtype=self.state_dtype,
        )
        return self.emit(op, (x, b, c, dt), name=name)[0]

    def route(self, name: str, x: Value, op: Route) -> tuple[Value, Value]:
        """(indices, weights) of the experts chosen for each token."""
        indices, weights = self.emit(op, (x,), name=name)
        return indices, weights

    def experts(self, name: str, x: Value, indices: Value, weights: Value, op: Experts) -> Value:
        """The weighted sum of the chosen experts."""
        return self.emit(op, (x, indices, weights), name=name)[0]

    def opaque(
        self,
        name: str,
        module: str,
        inputs: Sequence[Value],
        *,
        width: int,
        params: Sequence[Param] = (),
        flops: Dim = 0,
        keywords: Mapping[str, Plain | list[Plain]] | None = None,
        axis: str | None = None,
        activations: Dim | None = None,
        products: Dim = 0,
    ) -> Value:
        """A torch module of your own, ``package.file:Class``, called with the inputs; (…, width), token by token.

        ``params`` are all of its weights as ``state_dict()`` names them, ``flops`` its work by ``BATCH`` and ``SEQ``; the
        class gets ``keywords``. It is imported when a model is built, and exported only by a lowering that it brings.
        ``activations`` are the numbers that its forward keeps for backward beside its inputs, ``products`` those that its
        matrix products write; without them training memory is given without the module, and says so.
        """
        op = Opaque(
            module=module,
            width=width,
            weights=tuple(weight_of(param) for param in params),
            work=flops,
            keywords=tuple((word, plain_of(value)) for word, value in sorted((keywords or {}).items())),
            axis=axis,
            activations=activations,
            products=products,
        )
        return self.emit(op, tuple(inputs), name=name)[0]
