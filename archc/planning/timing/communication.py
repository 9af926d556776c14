"""What ranks send each other in a step, read off where weights are cut.

A ring over n ranks sends ``2 (n-1)/n`` of a tensor's bytes from each rank to add it up everywhere, ``(n-1)/n`` to gather it
(Patarasuk and Yuan, JPDC 2009). Latencies count nothing and nothing is hidden behind compute: the sum is an upper bound
where a runtime overlaps.
"""

from __future__ import annotations

from archc.estimation.cache import CacheOptions
from archc.graph.graph import resolve_dtype
from archc.ir.size import evaluate, product
from archc.ir.values import Node, Value
from archc.planning.partial_sums import gives_parts
from archc.planning.sharding import Stage
from archc.planning.timing.forms import CUT_AXES
from archc.planning.timing.roofline import Roof
from archc.planning.timing.work import Pieces, Step
from archc.units import tensor_bytes

Sent = dict[str, int]
"""Kind of collective -> bytes that one rank sends."""


def node_sends(
    node: Node, step: Step, options: CacheOptions, pieces: Pieces, *, is_output: bool, is_added_later: bool = False
) -> Sent:
    """What follows one op.

    * A weight cut by tp behind which the output has no cut axis gave partial sums: they are added up (``all_reduce``), unless
      they are added to another op's first.
    * Experts that are shared out: each rank's tokens go to the ranks of their experts and back (``all_to_all``).
    * An output of the model along a cut axis is gathered (``all_gather``), in float32; a loss is taken of it as it is cut, by
      two numbers a token (Megatron-LM's cross-entropy), which count nothing.
    * Rows of a state that grows go round the ranks of cp (``ring``); of a decode step, to which each rank's rows give a part
      of the output, those parts are added up in float32 (``combine``).
    """
    parallel, sent = pieces.parallel, Sent()
    sharing = parallel.cp if step.name != "decode" else 1
    if gives_parts(node, pieces) and not is_added_later:
        own = _bytes(node.outputs[0], step, options) // sharing
        sent["all_reduce"] = own * 2 * (parallel.tp - 1) // parallel.tp
    if is_output and step.name != "train_step" and parallel.tp > 1 and node.outputs[0].axis in CUT_AXES:
        elements = evaluate(product(node.outputs[0].shape), step.env) // sharing
        sent["all_gather"] = tensor_bytes(elements, "float32") * (parallel.tp - 1) // parallel.tp
    if pieces.is_shared_out(node) and parallel.ep > 1:
        chosen = max(chosen_experts(node, role) for role in node.params)
        whole = _bytes(node.inputs[0], step, options) * chosen
        sent["all_to_all"] = 2 * whole // (parallel.tp * parallel.cp) * (parallel.ep - 1) // parallel.ep
    growing = (
        [(role, state) for role, state in node.states.items() if state.growth == "append"] if parallel.cp > 1 else []
    )
    if growing and step.name == "decode":
        elements = evaluate(product(node.outputs[0].shape), step.env) // pieces.tp_ways(node)
        sent["combine"] = tensor_bytes(elements, "float32") * 2 * (parallel.cp - 1) // parallel.cp
    elif growing:
        rows = (
            tensor_bytes(evaluate(product(pieces.states[node, role].local.used), step.env), options.state_dtype(state))
            for role, state in growing
        )
        sent["ring"] = sum(rows) * (parallel.cp - 1)
    return sent


def chosen_experts(node: Node, role: str) -> int:
    """Experts that one token visits."""
    param = node.params[role]
    if "experts" not in param.axes:
        return 1
    experts = param.shape[param.axes.index("experts")]
    return max(1, node.op.active_elements(role, param) * experts // param.elements)


def _bytes(value: Value, step: Step, options: CacheOptions) -> int:
    return tensor_bytes(evaluate(product(value.shape), step.env), resolve_dtype(value.dtype, options.model_dtype))


def send_s(sent: Sent, pieces: Pieces, roof: Roof) -> dict[str, float]:
    """Seconds by kind of collective; each kind has its own group of ranks."""
    parallel = pieces.parallel
    groups = {
        "all_reduce": parallel.tp,
        "all_gather": parallel.tp,
        "all_to_all": parallel.ep,
        "ring": parallel.cp * parallel.tp,
        "combine": parallel.cp * parallel.tp,
    }
    return {kind: roof.wire_s(count, groups[kind]) for kind, count in sent.items()}


def hand_on_s(hidden_bytes: int, pieces: Pieces, roof: Roof) -> float:
    """Seconds that one stage takes to hand its output to the next."""
    parallel = pieces.parallel
    return roof.wire_s(hidden_bytes // (parallel.tp * parallel.cp), parallel.tp * parallel.cp * parallel.pp)


def gradients_s(stage: Stage, pieces: Pieces, model_dtype: str, roof: Roof) -> float:
    """Seconds to add up the gradients of a stage over the copies of its weights, in the weights' dtype, once a step."""
    parallel, total = pieces.parallel, 0.0
    for held in stage.params:
        is_shared_out = held.is_expert and parallel.ep > 1
        copies = parallel.stage_ranks // parallel.ep if is_shared_out else parallel.dp * parallel.cp
        if held.param.trainable and copies > 1:
            own = tensor_bytes(held.elements, resolve_dtype(held.param.dtype, model_dtype)) * held.count
            total += roof.wire_s(own * 2 * (copies - 1) // copies, copies * parallel.tp)
    return total
