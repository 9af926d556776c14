"""One step of a model on its ranks: the ops of each stage under the roof, and what ranks send each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from archc.estimation.cache import CacheOptions
from archc.estimation.flops import BACKWARD
from archc.estimation.placed import Placed, place
from archc.graph.graph import Graph, resolve_dtype
from archc.ir.op import Pairs
from archc.ir.size import evaluate, product
from archc.ir.values import Body, Call, Node, Value
from archc.planning.partial_sums import added_with_others
from archc.planning.sharding import Sharding, Stage
from archc.planning.stages import StageItems, split_into_stages
from archc.planning.timing.communication import gradients_s, hand_on_s, node_sends, send_s
from archc.planning.timing.flop_conventions import FORWARD_AGAIN, sequence_rows
from archc.planning.timing.forms import OpForms, op_forms
from archc.planning.timing.roofline import Roof, Row, merged
from archc.planning.timing.work import Step, StepName, Work, make_step, node_work, pieces_of
from archc.units import tensor_bytes

OPTIMIZER_BYTES_PER_PARAMETER = 28
"""AdamW: the gradient read, weight and two moments read and written in float32, the 16-bit weight written: 2 + 24 + 2."""

OUTSIDE = "outside of the layers"


@dataclass(slots=True, eq=False, repr=False)
class StepTime:
    """One kind of step. ``seconds`` is the time of one, ``tokens`` what all copies of the model get through in it.

    ``by_part`` and ``by_layer`` are one rank's of each stage, summed over the stages, in training of one micro-batch;
    ``communication_s`` is by kind of collective. ``flops`` are those of all ranks, without what recomputation repeats.
    """

    name: StepName
    tokens: int
    flops: int
    seconds: float
    work_s: float
    communication_s: dict[str, float]
    bubble_s: float
    optimizer_s: float
    tokens_per_s: float
    flops_utilization: float
    by_part: list[Row]
    by_layer: list[Row]

    @property
    def whole(self) -> Row:
        """The sum of the rows."""
        return merged(self.by_part, "whole")

    def at_share(self, share: float, flops_per_token: float, roof: Roof, ranks: int) -> StepTime:
        """The step as it is where so large a share of the peak is reached, whatever the roofline says."""
        tokens_per_s = share * roof.peak_flops_per_s * ranks / flops_per_token
        seconds = self.tokens / tokens_per_s
        used = self.flops / (seconds * roof.peak_flops_per_s * ranks)
        return replace(self, seconds=seconds, tokens_per_s=tokens_per_s, flops_utilization=used)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tokens": self.tokens,
            "flops": self.flops,
            "seconds": self.seconds,
            "work_s": self.work_s,
            "communication_s": self.communication_s,
            "bubble_s": self.bubble_s,
            "optimizer_s": self.optimizer_s,
            "tokens_per_s": self.tokens_per_s,
            "flops_utilization": self.flops_utilization,
            "whole": self.whole.to_json(),
            "by_part": [row.to_json() for row in self.by_part],
            "by_layer": [row.to_json() for row in self.by_layer],
        }


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """What all steps of one model on one set of ranks share."""

    graph: Graph
    sharding: Sharding
    roof: Roof
    options: CacheOptions
    pairs: Pairs = "needed"
    recompute: str = "none"
    micro_batch_size: int = 1
    micro_batches: int = 1
    overlap: float = 0.0
    _forms: dict[Node, OpForms] = field(default_factory=dict[Node, OpForms])

    def forms(self, node: Node) -> OpForms:
        """The closed forms of an op, made once."""
        if node not in self._forms:
            self._forms[node] = op_forms(node, self.pairs)
        return self._forms[node]

    def step(self, name: StepName) -> StepTime:
        """The time of one step."""
        stages = [
            _Staged(self, name, items, stage)
            for items, stage in zip(
                split_into_stages(self.graph, len(self.sharding.stages)).stages, self.sharding.stages, strict=True
            )
        ]
        sent = _summed(stage.sent for stage in stages)
        passes_s = sum(stage.seconds for stage in stages)
        slowest_s = max(stage.seconds for stage in stages)
        tokens = self._tokens(name) * self.sharding.parallel.dp
        flops = sum(stage.flops for stage in stages) * self.sharding.parallel.dp
        work_s, bubble_s, optimizer_s = sum(stage.work_s for stage in stages), 0.0, 0.0
        seconds, rate_s = passes_s, slowest_s
        if name == "train_step":
            tokens, flops = tokens * self.micro_batches, flops * self.micro_batches
            grads_s = max(stage.gradients_s for stage in stages)
            optimizer_s = max(stage.optimizer_s for stage in stages)
            bubble_s = slowest_s * (len(stages) - 1)
            seconds = rate_s = slowest_s * self.micro_batches + bubble_s + grads_s + optimizer_s
            if grads_s:
                sent["gradients"] = grads_s
        peak = self.roof.peak_flops_per_s * self.sharding.parallel.ranks
        return StepTime(
            name=name,
            tokens=tokens,
            flops=flops,
            seconds=seconds,
            work_s=work_s,
            communication_s=sent,
            bubble_s=bubble_s,
            optimizer_s=optimizer_s,
            tokens_per_s=tokens / rate_s,
            flops_utilization=flops / (rate_s * peak),
            by_part=_rows(row for stage in stages for row in stage.parts.values()),
            by_layer=_rows(row for stage in stages for row in stage.layers.values()),
        )

    def at(self, name: StepName, *, is_last: bool = False) -> Step:
        """The numbers of a step; ``is_last`` for what stands behind the last layer."""
        options = self.options
        batch_size = self.micro_batch_size if name == "train_step" else options.batch_size
        sizes = {"batch_size": batch_size, "max_model_len": options.max_model_len}
        return make_step(name, **sizes, source_len=options.source_len, is_last=is_last)

    def value_bytes(self, value: Value, name: StepName) -> int:
        """Bytes of a value of one copy."""
        elements = evaluate(product(value.shape), self.at(name).env)
        return tensor_bytes(elements, resolve_dtype(value.dtype, self.options.model_dtype))

    def _tokens(self, name: StepName) -> int:
        """New rows of the last layer of one copy: tokens of a text, patches of a picture."""
        return evaluate(product(sequence_rows(self.graph)), self.at(name).env)


class _Staged:
    """One stage in one step: seconds of a pass without and with what its ranks send, and its rows."""

    def __init__(self, run: Run, name: StepName, items: StageItems, stage: Stage) -> None:
        self.run, self.stage = run, stage
        self.pieces = pieces_of(stage, run.sharding.parallel)
        self.parts: dict[str, Row] = {}
        self.layers: dict[str, Row] = {}
        self.sent: dict[str, float] = {}
        self.work_s, self.flops = 0.0, 0
        outputs = set(made_outputs(run.graph.outputs.values(), items))
        self.later = added_with_others((*items.before, *items.layers, *items.behind), self.pieces)
        for placed in place(stage_graph(run.graph, items)).nodes:
            self._add(placed, run.at(name, is_last=placed.is_readout), outputs)
        if stage is not run.sharding.stages[-1]:
            bytes_out = sum(run.value_bytes(value, name) for value in items.layers[-1].outputs)
            self.sent["hand_on"] = hand_on_s(bytes_out, self.pieces, run.roof) * (1 + (name == "train_step"))

    def _add(self, placed: Placed, step: Step, outputs: set[Value]) -> None:
        run, is_training = self.run, step.name == "train_step"
        again = FORWARD_AGAIN[run.recompute] if is_training and placed.layer else 0
        forms = run.forms(placed.node)
        work = node_work(forms, step, run.options, self.pieces)
        passes = placed.count * (1 + again + (BACKWARD if is_training else 0))
        whole = Row("")
        whole.add(work.times(passes), run.roof)
        for rows, key in ((self.parts, ".".join(placed.part[:2])), (self.layers, placed.layer or OUTSIDE)):
            rows.setdefault(key, Row(key)).join(whole)
        self.work_s += whole.seconds
        forward = evaluate(forms.flops[step.form], step.env)
        self.flops += forward * placed.count * (1 + (BACKWARD if is_training else 0))
        is_output = any(value in outputs for value in placed.node.outputs)
        later = placed.node in self.later
        sends = node_sends(placed.node, step, run.options, self.pieces, is_output=is_output, is_added_later=later)
        times = placed.count * (1 + again + is_training)
        for kind, seconds in send_s(sends, self.pieces, run.roof).items():
            self.sent[kind] = self.sent.get(kind, 0.0) + seconds * times

    @property
    def seconds(self) -> float:
        """One pass of one batch, with what the ranks send and can't hide behind work."""
        sent_s = sum(self.sent.values())
        return self.work_s + sent_s - min(sent_s * self.run.overlap, self.work_s)

    @property
    def gradients_s(self) -> float:
        return gradients_s(self.stage, self.pieces, self.run.options.model_dtype, self.run.roof)

    @property
    def optimizer_s(self) -> float:
        """AdamW over all weights that one rank holds."""
        elements = sum(held.elements * held.count for held in self.stage.params if held.param.trainable)
        return self.run.roof.memory_s(Work(weight_bytes=elements * OPTIMIZER_BYTES_PER_PARAMETER))


def stage_graph(graph: Graph, items: StageItems) -> Graph:
    """A stage as a graph of its own."""
    root = Body(graph.root.label)
    root.items = [*items.before, *items.layers, *items.behind]
    return replace(graph, root=root)


def made_outputs(values: Iterable[Value], items: StageItems) -> Iterator[Value]:
    """Where values of the root are made inside of the scopes that give them."""
    makers: dict[Value, Node | Call] = {
        value: item for item in (*items.before, *items.layers, *items.behind) for value in item.outputs
    }
    for value in values:
        item = makers.get(value)
        while isinstance(item, Call):
            value, body = item.body.outputs[item.outputs.index(value)], item.body
            item = next((inner for inner in body.items if value in inner.outputs), None)
        yield value


def _summed(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for kind, seconds in part.items():
            total[kind] = total.get(kind, 0.0) + seconds
    return total


def _rows(rows: Iterable[Row]) -> list[Row]:
    """Rows of one name as one, in order of first use, without those that do nothing."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row.name, Row(row.name)).join(row)
    return [row for row in found.values() if row.seconds]
