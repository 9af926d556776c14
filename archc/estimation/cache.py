"""Bytes that a conversation keeps: what the formula needs, what a tensor holds, what a paged runtime gives out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from archc.estimation.placed import Part, Placed, Placement
from archc.graph.graph import Graph, resolve_dtype
from archc.ir.size import SEQ, Dim, ceil_div, evaluate, product, simplify, symbol
from archc.ir.values import State
from archc.units import DTYPE_BITS, tensor_bytes

DEFAULT_BLOCK_SIZE_TOKENS = 16
"""Tokens a block of a paged cache, vLLM's default."""

LONG_CONTEXT = 1 << 40
"""Tokens beyond every window: growth is measured between this and twice this."""

TOKENS = symbol("(past + seq)")
"""Tokens in the cache, as a formula prints them."""


@dataclass(slots=True, eq=False, repr=False)
class CacheKind:
    """The states of all layers whose mixer has one name; ``layers`` are those that keep something."""

    name: str
    part: Part
    layers: int
    policy: str = ""
    block_size_tokens: int = 0
    ops: list[str] = field(default_factory=list[str])
    window: int | None = None
    bytes_per_token: int = 0
    bytes_per_token_below_windows: int = 0
    bytes_per_source_token: int = 0
    recurrent_bytes_per_sequence: int = 0
    convolution_bytes_per_sequence: int = 0
    used_bytes: int = 0
    allocated_bytes: int = 0
    paged_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "part": ".".join(self.part),
            "layers": self.layers,
            "policy": self.policy,
            "block_size_tokens": self.block_size_tokens,
            "ops": self.ops,
            "window_tokens": self.window,
            "bytes_per_token": self.bytes_per_token,
            "bytes_per_token_below_windows": self.bytes_per_token_below_windows,
            "bytes_per_source_token": self.bytes_per_source_token,
            "recurrent_bytes_per_sequence": self.recurrent_bytes_per_sequence,
            "convolution_bytes_per_sequence": self.convolution_bytes_per_sequence,
            "used_bytes": self.used_bytes,
            "allocated_bytes": self.allocated_bytes,
            "paged_bytes": self.paged_bytes,
        }


@dataclass(slots=True, eq=False, repr=False)
class Cache:
    """Sums over all layers; ``by_layer`` has the same rows by layer kind, for tables."""

    by_kind: list[CacheKind]
    by_layer: dict[str, CacheKind]
    formula: str
    capacity_rows: int

    def total(self, quantity: str) -> int:
        """Sum of one quantity (a field of ``CacheKind``) over the kinds."""
        return sum(getattr(kind, quantity) for kind in self.by_kind)

    @property
    def bytes_per_token(self) -> int:
        """Growth of one sequence by one token once every window is full."""
        return self.total("bytes_per_token")

    @property
    def used_bytes(self) -> int:
        return self.total("used_bytes")

    @property
    def allocated_bytes(self) -> int:
        return self.total("allocated_bytes")

    @property
    def paged_bytes(self) -> int:
        return self.total("paged_bytes")

    def to_json(self) -> dict[str, Any]:
        quantities = (
            "bytes_per_token",
            "bytes_per_token_below_windows",
            "bytes_per_source_token",
            "recurrent_bytes_per_sequence",
            "convolution_bytes_per_sequence",
            "used_bytes",
            "allocated_bytes",
            "paged_bytes",
        )
        sums: dict[str, Any] = {quantity: self.total(quantity) for quantity in quantities}
        return {
            **sums,
            "capacity_rows": self.capacity_rows,
            "by_kind": [kind.to_json() for kind in self.by_kind],
            "formula": self.formula,
        }


@dataclass(slots=True, eq=False, repr=False)
class CacheOptions:
    """What overrides the spec's cache policies.

    ``kv_dtype`` is that of keys, values, latents and convolution columns; ``block_size_tokens`` are those of a block.
    """

    model_dtype: str
    kv_dtype: str | None
    batch_size: int
    max_model_len: int
    source_len: int
    block_size_tokens: int | None

    def block_tokens(self, stated: int | None) -> int:
        """Tokens a block: the option's, what a policy states, or the usual number."""
        return self.block_size_tokens or stated or DEFAULT_BLOCK_SIZE_TOKENS

    def state_dtype(self, state: State) -> str:
        """The dtype a state is kept in; a recurrent state follows the spec's ``state_dtype`` whatever the options."""
        if self.kv_dtype is not None and state.role != "recurrent":
            return self.kv_dtype
        return resolve_dtype(state.dtype, self.model_dtype)


def measure_cache(graph: Graph, placement: Placement, options: CacheOptions) -> Cache:
    """The cache at the options' batch and length."""
    kinds: dict[Part, CacheKind] = {}
    layers = {label: CacheKind(label, (), count) for label, count in placement.layers.items()}
    formula: Dim = 0
    for placed in placement.nodes:
        for state in placed.node.states.values():
            part = placed.part[:2]
            if part not in kinds:
                policy, stated = graph.policies.get(part[-1], ("", None))
                layers_of = placement.keeping.get(part, placed.count)
                kinds[part] = CacheKind(part[-1], part, layers_of, policy, options.block_tokens(stated))
            rows = [kinds[part]]
            if placed.layer:
                rows.append(layers[placed.layer])
            for kind in rows:
                add_state(kind, graph, placed, state, options, kinds[part].block_size_tokens)
            formula = formula + bytes_formula(state, DTYPE_BITS[options.state_dtype(state)]) * placed.count
    simple = simplify(formula)
    text = str(simple if isinstance(simple, int) else simple.substitute({"past": TOKENS - SEQ}))
    return Cache(list(kinds.values()), layers, text, graph.capacity(options.max_model_len))


def add_state(
    kind: CacheKind, graph: Graph, placed: Placed, state: State, options: CacheOptions, block_size_tokens: int
) -> None:
    """Add one state of the layers that hold it to a row."""
    dtype, count = options.state_dtype(state), placed.count
    name = placed.node.op.op_name
    if name not in kind.ops:
        kind.ops.append(name)
    env = {"batch": options.batch_size, "past": 0, "seq": options.max_model_len, "memory": options.source_len}
    kind.used_bytes += tensor_bytes(evaluate(product(state.used), env), dtype) * count
    lengths = {"max_model_len": options.max_model_len, "source_len": options.source_len}
    shape = graph.state_shape(state, batch=options.batch_size, **lengths)
    kind.allocated_bytes += tensor_bytes(evaluate(product(shape), {}), dtype) * count
    kind.paged_bytes += tensor_bytes(_paged_elements(state, env, block_size_tokens), dtype) * count
    if state.token_dim is None:
        fixed_bytes = tensor_bytes(_elements(state, tokens=1), dtype) * count
        if state.role == "convolution":
            kind.convolution_bytes_per_sequence += fixed_bytes
        else:
            kind.recurrent_bytes_per_sequence += fixed_bytes
        return
    if state.growth == "source":
        kind.bytes_per_source_token += tensor_bytes(_elements(state, tokens=1) * count, dtype)
        return
    far = _elements(state, tokens=2 * LONG_CONTEXT) - _elements(state, tokens=LONG_CONTEXT)
    kind.bytes_per_token += tensor_bytes(far * count, dtype) // LONG_CONTEXT
    if state.growth == "ring":
        first_token = _elements(state, tokens=1) - _elements(state, tokens=0)
        kind.bytes_per_token_below_windows += tensor_bytes(first_token * count, dtype)
        rows = state.allocated[state.token_dim]
        kind.window = max(kind.window or 0, evaluate(rows, {}))
    else:
        kind.bytes_per_token_below_windows += tensor_bytes(far * count, dtype) // LONG_CONTEXT


def _elements(state: State, *, tokens: int) -> int:
    return evaluate(product(state.used), {"batch": 1, "past": 0, "seq": tokens, "memory": tokens})


def _paged_elements(state: State, env: dict[str, int], block_size_tokens: int) -> int:
    """Elements when tokens are given out in whole blocks to each sequence; a fixed state is whole already."""
    if state.token_dim is None:
        return evaluate(product(state.used), env)
    shape = list(state.used)
    shape[state.token_dim] = ceil_div(evaluate(shape[state.token_dim], env), block_size_tokens) * block_size_tokens
    return evaluate(product(shape), env)


def bytes_formula(state: State, bits: int) -> Dim:
    """Bytes that are used, symbolic."""
    elements = product(state.used)
    return elements * (bits // 8) if bits % 8 == 0 else ceil_div(elements * bits, 8)
