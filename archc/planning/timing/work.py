"""What one op does in one step, as integers: FLOPs, and bytes of weights, activations and states that it moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from archc.estimation.cache import CacheOptions
from archc.graph.graph import resolve_dtype
from archc.ir.op import Form
from archc.ir.size import evaluate, product
from archc.ir.values import Node
from archc.planning.sharding import Parallel, ShardedParam, ShardedState, Stage
from archc.planning.timing.forms import CUT_AXES, OpForms, WeightForm
from archc.units import tensor_bytes

StepName = Literal["forward", "prefill", "decode", "train_step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one copy of a model: symbols -> numbers, and the form that ops take."""

    name: StepName
    env: dict[str, int]
    form: Form


def make_step(
    name: StepName,
    *,
    batch_size: int,
    max_model_len: int,
    source_len: int,
    is_last: bool = False,
) -> Step:
    """A step at a batch and a length in tokens.

    ``decode`` is the last token of ``max_model_len``, every other step brings all of them. With ``is_last`` it is the step of
    what stands behind the last layer, where a prefill needs one token.
    """
    source = {"source": source_len, "memory": source_len}
    if name == "decode":
        env = {"batch": batch_size, "seq": 1, "past": max_model_len - 1, **source, "source": 0}
        return Step(name, env, "few")
    length = 1 if is_last and name == "prefill" else max_model_len
    return Step(name, {"batch": batch_size, "seq": length, "past": 0, **source}, "many")


@dataclass(slots=True)
class Work:
    """FLOPs and bytes moved; they add up."""

    flops: int = 0
    weight_bytes: int = 0
    activation_bytes: int = 0
    state_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes + self.state_bytes

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity; 0 where nothing is moved."""
        return self.flops / self.bytes if self.bytes else 0.0

    def times(self, count: int) -> Work:
        """The work of so many passes."""
        return Work(
            self.flops * count, self.weight_bytes * count, self.activation_bytes * count, self.state_bytes * count
        )

    def add(self, other: Work) -> None:
        self.flops += other.flops
        self.weight_bytes += other.weight_bytes
        self.activation_bytes += other.activation_bytes
        self.state_bytes += other.state_bytes


@dataclass(slots=True, eq=False, repr=False)
class Pieces:
    """How one rank of a stage holds weights, by id, and states, by node and role."""

    parallel: Parallel
    params: dict[int, ShardedParam]
    states: dict[tuple[Node, str], ShardedState]

    def tp_ways(self, node: Node) -> int:
        """Into how many pieces tensor parallelism cuts the work of an op; 1 where every rank does all of it."""
        cut = [
            ways
            for param in node.params.values()
            for name, ways in self.params[id(param)].cuts.values()
            if name == "tp"
        ]
        if cut:
            return max(cut)
        return self.parallel.tp if any(value.axis in CUT_AXES for value in node.outputs) else 1

    def is_shared_out(self, node: Node) -> bool:
        """Whether expert parallelism cuts the weights of an op."""
        return any(name == "ep" for param in node.params.values() for name, _ in self.params[id(param)].cuts.values())


def pieces_of(stage: Stage, parallel: Parallel) -> Pieces:
    """The weights and states of a stage, to be looked up."""
    params = {id(held.param): held for held in stage.params}
    return Pieces(parallel, params, {(held.node, held.role): held for held in stage.states})


def node_work(forms: OpForms, step: Step, options: CacheOptions, pieces: Pieces) -> Work:
    """The work of one rank.

    The ranks of cp share the tokens of a prefill; of a decode step they share the rows of states that grow.
    """
    flops = evaluate(forms.flops[step.form], step.env)
    work = Work(state_bytes=_state_bytes(forms, step, options, pieces))
    if flops == 0:
        return work
    node, tp, cp = forms.node, pieces.parallel.tp, pieces.parallel.cp
    sharing = cp if step.name != "decode" or any(one.state.growth == "append" for one in forms.states) else 1
    ways = tp * cp if pieces.is_shared_out(node) else pieces.tp_ways(node) * sharing
    work.flops = -(-flops // ways)
    work.weight_bytes = sum(_weight_bytes(one, forms, step, options.model_dtype, pieces) for one in forms.weights)
    for value in forms.values:
        cut = (tp if value.is_cut else 1) * (cp if step.name != "decode" else 1)
        elements = -(-evaluate(value.elements, step.env) // cut)
        stored = options.kv_dtype if value.is_cache else None
        count_bytes = tensor_bytes(elements, stored or resolve_dtype(value.dtype, options.model_dtype))
        if value.is_cache:
            work.state_bytes += count_bytes
        else:
            work.activation_bytes += count_bytes
    return work


def _weight_bytes(weight: WeightForm, forms: OpForms, step: Step, model_dtype: str, pieces: Pieces) -> int:
    """Every weight once; of experts those that some token is expected to choose."""
    elements, parallel = pieces.params[id(weight.param)].elements, pieces.parallel
    if weight.chosen < 1:
        rows = evaluate(forms.rows, step.env)
        if pieces.is_shared_out(forms.node):
            # The tokens of all copies meet in a group of ep ranks.
            rows = -(-rows * parallel.dp * parallel.ep // parallel.stage_ranks)
        elif step.name != "decode":
            rows = -(-rows // parallel.cp)
        elements = math.ceil(elements * expected_share(weight.chosen, rows))
    return tensor_bytes(elements, resolve_dtype(weight.param.dtype, model_dtype))


def expected_share(chosen: float, tokens: int) -> float:
    """Share of experts that some of ``tokens`` chooses, ``1 - (1 - k/E)^tokens`` where each chooses k of E at random."""
    return 1.0 if chosen >= 1 else -math.expm1(tokens * math.log1p(-chosen))


def _state_bytes(forms: OpForms, step: Step, options: CacheOptions, pieces: Pieces) -> int:
    """A prefill writes what it keeps; a decode step reads rows, adds one among them, and reads and writes a fixed state."""
    if step.name not in ("prefill", "decode"):
        return 0
    total = 0
    for one in forms.states:
        whole = evaluate(one.written, step.env)
        if whole == 0:
            continue
        local = evaluate(product(pieces.states[forms.node, one.role].local.used), step.env)
        moved = whole if step.name == "prefill" else evaluate(one.read, step.env)
        own = tensor_bytes(-(-moved * local // whole), options.state_dtype(one.state))
        total += own * (one.passes if step.name == "decode" else 1)
    return total
