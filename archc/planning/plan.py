"""``archc.plan``: how training cuts a model over ranks, what each holds and what they send each other. It never imports torch.

Nothing is counted here a second time: pieces are those of ``shard``, bytes those of ``weight_bytes``, as ``archc estimate
--train`` has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from archc.errors import ArchcError, Problem, SpecError
from archc.expansion import Source, as_graph
from archc.planning.collectives import Collective, collectives
from archc.planning.flow import rank_graph
from archc.planning.options import below_one, known_dtype, with_copies
from archc.planning.parallel import Parallel
from archc.planning.plan_rows import StateRow, WeightRow, layer_gathers, replicated_bytes, state_rows, weight_rows
from archc.planning.rank_graph import RankGraph
from archc.planning.sharding import shard
from archc.planning.trainable import training_limits, training_notes
from archc.planning.training.context_parallel import context_problems
from archc.planning.training.estimate import TRAINED_DTYPES
from archc.planning.training.optimizers import OPTIMIZERS, optimizer_named
from archc.planning.training.weights import WeightBytes, WeightOptions, weight_bytes

ZERO = 3
"""What ``archc train`` does: parameters, gradients and optimizer states are cut over dp x cp."""


@dataclass(slots=True, eq=False, repr=False)
class StagePlan:
    """One rank of a stage, the first, which holds the most; ``replicated_bytes`` are of weights that another rank has, too."""

    stage: int
    layers: tuple[str, ...]
    ranks: int
    weights: WeightBytes
    replicated_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Keys and numbers are those of ``archc estimate --train``."""
        held = self.weights
        return {
            "stage": self.stage,
            "layers": list(self.layers),
            "ranks": self.ranks,
            "elements": held.elements,
            "parameter_bytes": held.parameters,
            "gathered_bytes": held.gathered,
            "buffer_bytes": held.buffers,
            "master_bytes": held.masters,
            "gradient_bytes": held.gradients,
            "gradient_in_flight_bytes": held.gradients_in_flight,
            "optimizer_bytes": held.optimizer,
            "host_bytes": held.host,
            "resident_bytes": held.resident,
            "replicated_bytes": self.replicated_bytes,
        }


@dataclass(slots=True, eq=False, repr=False)
class Plan:
    """A model over ranks. ``limits`` say why ``archc train`` can't run it so; ``notes`` what is uneven or held more than once.

    ``gathers``: label of a layer (empty: what stands outside) -> bytes that ZeRO gathers for one, the largest.
    """

    name: str
    parallel: Parallel
    dtype: str
    optimizer: str
    zero: int
    stages: list[StagePlan]
    weights: list[WeightRow]
    states: list[StateRow]
    communication: list[Collective]
    gathers: dict[str, int]
    limits: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def is_trainable(self) -> bool:
        """Whether ``archc train`` runs it."""
        return not self.limits

    def to_json(self) -> dict[str, Any]:
        """Plain data; every number of bytes is an integer."""
        return {
            "name": self.name,
            "parallel": self.parallel.to_json(),
            "ranks": self.parallel.ranks,
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "zero": self.zero,
            "trainable": self.is_trainable,
            "limits": self.limits,
            "stages": [stage.to_json() for stage in self.stages],
            "weights": [row.to_json() for row in self.weights],
            "states": [row.to_json() for row in self.states],
            "communication": [each.to_json() for each in self.communication],
            "zero_gathered_bytes_by_layer": self.gathers,
            "notes": self.notes,
        }


def plan(
    spec_or_graph: Source,
    parallel: Parallel | None = None,
    *,
    gpus: int | None = None,
    dtype: str | None = None,
    grad_dtype: str | None = None,
    optimizer: str = "adamw",
    master_weights: bool = True,
    zero: int = ZERO,
) -> Plan:
    """How training cuts a spec, a graph, a file or a shipped name over ranks; options mean what ``estimate_training``'s do.

    ``gpus`` without dp in ``parallel`` are as many copies as fit beside tp, pp and cp.

    Raises:
        ArchcError: the spec has problems.
        SpecError: an option or a cut can't be; every reason is listed.
    """
    graph = as_graph(spec_or_graph)
    problems = below_one({"gpus": gpus})
    split = with_copies(parallel or Parallel(), gpus, problems)
    model_dtype = known_dtype("dtype", dtype or graph.dtype, problems, TRAINED_DTYPES) or "float32"
    summed = known_dtype("grad_dtype", grad_dtype, problems, TRAINED_DTYPES)
    try:
        optimizer_named(optimizer)
    except ArchcError as error:
        problems.append(str(error))
    if zero not in range(4):
        problems.append(f"zero should be 0, 1, 2 or 3 (found {zero})")
    # As DTensor cuts: a table's rows are not padded.
    sharding = shard(graph, split, vocab_multiple=1)
    problems += [*sharding.problems, *context_problems(graph, max(split.cp, 1))]
    if problems:
        raise SpecError([Problem(message=message, code="plan") for message in dict.fromkeys(problems)])
    options = WeightOptions(model_dtype, OPTIMIZERS[optimizer], master_weights, summed, zero)
    stages = [
        StagePlan(
            stage.index,
            stage.layers,
            split.stage_ranks,
            weight_bytes([stage], split, options),
            replicated_bytes(stage, split, options),
        )
        for stage in sharding.stages
    ]
    notes = [*sharding.notes, *training_notes(graph)]
    ranked: RankGraph | None = None
    limits = training_limits(graph, split, sharding)
    if split.tp > 1 and not limits:
        ranked = rank_graph(graph, split, 0)
        notes += ranked.notes
    if zero not in (0, ZERO) and split.dp * split.cp == 1:
        notes.append(f"zero {zero} cuts nothing: dp x cp is 1")
    if zero >= 2 and split.pp > 1 and split.dp * split.cp > 1:
        notes.append(
            "pipelines share out gradients behind the last micro-batch: until then a rank holds those of its stage whole, more "
            f"than is counted here for zero {zero}"
        )
    return Plan(
        name=graph.name,
        parallel=split,
        dtype=model_dtype,
        optimizer=optimizer,
        zero=zero,
        stages=stages,
        weights=weight_rows(sharding.stages, split, options),
        states=state_rows(sharding.stages),
        communication=collectives(graph, sharding, model_dtype, None if ranked is None else ranked.graph),
        gathers=dict(layer_gathers(sharding.stages, options)) if zero >= 2 and split.dp * split.cp > 1 else {},
        limits=limits,
        notes=notes,
    )
