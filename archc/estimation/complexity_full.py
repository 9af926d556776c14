"""Full attention to compare with: what counts as such in a graph, and a ``gqa`` that is made where a stack has none."""

from __future__ import annotations

from archc import registry
from archc.estimation.complexity_costs import Costs, body_costs, flops_of, nodes_of
from archc.estimation.complexity_growth import Growth, bounds_of
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, SEQ
from archc.ir.values import Body, Node, TensorType

KIND = "gqa"


def is_full_attention(body: Body, prefill: Growth) -> bool:
    """Whether a mixer grows with n^2 and no op of it bounds what a token reads."""
    return prefill.exponent == 2 and not any(True for node in nodes_of(body) for _ in bounds_of(node.op))


def full_attention(body: Body, dtype: str, *, mask: str) -> tuple[str, Costs] | None:
    """(its name, its costs) of a ``gqa`` in the place of a mixer, with as many heads as wide; None where that has no heads.

    ``mask`` is that of the stack. A mixer without heads, only channels, is compared with one head of all of them.

    Raises:
        PluginError: the kind ``gqa`` is not installed.
    """
    node = _mixing(body)
    if node is None or not body.inputs:
        return None
    heads: int = getattr(node.op, "num_heads", 1)
    kv_heads: int = getattr(node.op, "num_kv_heads", heads)
    head_dim = node.outputs[0].width // heads
    g = Builder()
    g.mask = "bidirectional" if mask == "bidirectional" else "causal"
    x = g.add_input("hidden_states", TensorType((BATCH, SEQ, body.inputs[0].width)))
    mixer = registry.load("mixer", KIND)(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)
    none = registry.load("position", "none")()
    g.scope("mixer", mixer.model_copy(update={"position": none}).define, x, label=KIND, part="mixer")
    (call,) = g.root.calls()
    return f"{KIND} of {heads} x {head_dim}", body_costs(call.body, dtype, decodes=g.mask == "causal")


def _mixing(body: Body) -> Node | None:
    """The node over the heads: with heads and a state, else with heads and work, else with a state that is no convolution's."""
    nodes = list(nodes_of(body))
    with_heads = [node for node in nodes if hasattr(node.op, "num_heads") and flops_of(node.op, node, "prefill") != 0]
    with_state = [node for node in nodes if any(state.role != "convolution" for state in node.states.values())]
    both = [node for node in with_heads if node in with_state]
    return next(iter([*both, *with_heads, *with_state]), None)
