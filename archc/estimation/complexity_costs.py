"""What one layer costs at length n, as closed forms: FLOPs, bytes kept and bytes moved, of a prefill and of a decode step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archc.graph.graph import resolve_dtype
from archc.ir.op import Form, Op
from archc.ir.size import Dim, ceil_div, minimum, product, symbol
from archc.ir.values import Body, Node, Param, Value
from archc.units import DTYPE_BITS

LENGTH, BATCH = symbol("n"), symbol("batch")
PREFILL: dict[str, Dim] = {"seq": LENGTH, "past": 0, "source": LENGTH, "memory": LENGTH}
"""n tokens from nothing, an encoder's as many."""
DECODE: dict[str, Dim] = {"seq": 1, "past": LENGTH - 1, "source": 0, "memory": LENGTH}
"""The n-th token, after an encoder of n tokens has run."""

STEPS: dict[str, tuple[Form, dict[str, Dim]]] = {"prefill": ("many", PREFILL), "decode": ("few", DECODE)}


@dataclass(frozen=True, slots=True)
class Costs:
    """Closed forms in ``n`` and ``batch``: FLOPs over needed pairs, bytes moved, bytes of the cache after n tokens."""

    prefill_flops: Dim = 0
    decode_flops: Dim = 0
    prefill_bytes: Dim = 0
    decode_bytes: Dim = 0
    cache_bytes: Dim = 0

    def plus(self, other: Costs, times: int = 1) -> Costs:
        """These and ``times`` the others."""
        return Costs(
            self.prefill_flops + other.prefill_flops * times,
            self.decode_flops + other.decode_flops * times,
            self.prefill_bytes + other.prefill_bytes * times,
            self.decode_bytes + other.decode_bytes * times,
            self.cache_bytes + other.cache_bytes * times,
        )


def nodes_of(body: Body) -> Iterator[Node]:
    """Every node of a body and of the scopes in it, as often as it runs."""
    for item in body.items:
        if isinstance(item, Node):
            yield item
        else:
            yield from nodes_of(item.body)


def body_costs(body: Body, dtype: str, *, decodes: bool = True) -> Costs:
    """The sum over the nodes of a body."""
    total = Costs()
    for node in nodes_of(body):
        total = total.plus(node_costs(node, dtype, decodes=decodes))
    return total


def node_costs(node: Node, dtype: str, *, decodes: bool = True, last_only: bool = False) -> Costs:
    """One node in a model of ``dtype``.

    ``decodes`` says whether the model goes on by a cache; with ``last_only`` a prefill needs the node for the last token.
    """
    prefill = {**PREFILL, "seq": 1} if last_only else PREFILL
    flops = {
        name: flops_of(node.op, node, name, prefill if name == "prefill" else env) for name, (_, env) in STEPS.items()
    }
    moved: dict[str, Dim] = {}
    for name, env in (("prefill", prefill), ("decode", DECODE)):
        moved[name] = _activations(node, dtype, env) + _weights(node, dtype, env) if flops[name] != 0 else 0
        for role, state in node.states.items():
            own = resolve_dtype(state.dtype, dtype)
            kept = _bytes(product(state.used), own, env)
            if name == "decode" and state.growth == "fixed":
                # Read, changed and written back, where rows are read once and one is added.
                moved[name] = moved[name] + kept * 2
            elif name == "decode":
                moved[name] = moved[name] + _bytes(node.op.read_elements(role, state), own, env)
            else:
                moved[name] = moved[name] + kept
    kept = cache_bytes(node.op, node, dtype)
    if not decodes:
        return Costs(prefill_flops=flops["prefill"], prefill_bytes=moved["prefill"], cache_bytes=kept)
    return Costs(flops["prefill"], flops["decode"], moved["prefill"], moved["decode"], kept)


def flops_of(op: Op, node: Node, step: str, env: dict[str, Dim] | None = None) -> Dim:
    """FLOPs of an op in the place of a node's own."""
    form, usual = STEPS[step]
    return _at(op.flops([value.type for value in node.inputs], form, "needed"), env or usual)


def cache_bytes(op: Op, node: Node, dtype: str) -> Dim:
    """Bytes that an op in the place of a node's own keeps after n tokens."""
    states = op.states([value.type for value in node.inputs]).values()
    total: Dim = 0
    for state in states:
        total = total + _bytes(product(state.used), resolve_dtype(state.dtype, dtype), PREFILL)
    return total


def _activations(node: Node, dtype: str, env: dict[str, Dim]) -> Dim:
    """Every input and output once."""
    total: Dim = 0
    for value, own, _ in moved_values(node):
        total = total + _bytes(product(value.shape), resolve_dtype(own, dtype), env)
    return total


def moved_values(node: Node) -> Iterator[tuple[Value, str, bool]]:
    """(value, its dtype, whether it is another layer's cache) of each input and output that an op reads or writes.

    Cached rows are left to the state that they are. An op without a state that reads rows of past tokens reads another layer's
    cache, in the dtype that this is kept in.
    """
    for value in dict.fromkeys((*node.inputs, *node.outputs)):
        is_long = _is_long(value)
        if is_long and _is_cache(value):
            continue
        is_read_cache = is_long and not node.states
        yield value, getattr(node.op, "cache_dtype", value.dtype) if is_read_cache else value.dtype, is_read_cache


def _is_long(value: Value) -> bool:
    """Whether it has numbers for past tokens, too."""
    return any(_at(dim, {"past": 0}) != dim for dim in value.shape)


def _is_cache(value: Value) -> bool:
    """Whether it is made in its body by an op with a state, whose rows it then is."""
    return any(isinstance(item, Node) and item.states and value in item.outputs for item in value.home.items)


def _weights(node: Node, dtype: str, env: dict[str, Dim]) -> Dim:
    """Every weight that the tokens together can touch once: of routed experts no more than they choose."""
    tokens = _at(product(node.inputs[0].shape[:-1]), env)
    total: Dim = 0
    for role, param in node.params.items():
        total = total + _bytes(_touched(node.op, role, param, tokens), resolve_dtype(param.dtype, dtype), {})
    return total


def _touched(op: Op, role: str, param: Param, tokens: Dim) -> Dim:
    by_one = op.active_elements(role, param)
    return param.elements if by_one == param.elements else minimum(param.elements, tokens * by_one)


def _bytes(elements: Dim, dtype: str, env: dict[str, Dim]) -> Dim:
    count, bits = _at(elements, env), DTYPE_BITS[dtype]
    return count * (bits // 8) if bits % 8 == 0 else ceil_div(count * bits, 8)


def _at(size: Dim, env: dict[str, Dim]) -> Dim:
    return size if isinstance(size, int) else size.substitute(env)
