"""What training a model takes on every rank: parameters, gradients, optimizer states, activations, logits and loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from archc.errors import ArchcError, Problem, SpecError
from archc.estimation.activations import OUTSIDE
from archc.estimation.estimate import length_of
from archc.expansion import Source, as_graph
from archc.graph.graph import Graph
from archc.ir.tape import RECOMPUTE, Recompute
from archc.ir.tape import Device as Kernels
from archc.planning.fitting import largest_that_fits
from archc.planning.hardware import Device
from archc.planning.options import below_one, known_device, known_dtype, unknown_word, unread_source, with_copies
from archc.planning.parallel import Parallel
from archc.planning.sharding import Sharding, Stage, shard
from archc.planning.training.activations import KeptByStages, StageActivations
from archc.planning.training.context_parallel import context_problems
from archc.planning.training.loss import LOSSES, loss_bytes
from archc.planning.training.memory import RankMemory, Training, TrainingOptions
from archc.planning.training.optimizers import OPTIMIZERS, optimizer_named
from archc.planning.training.reference_activations import FormulaByStages, formula_problems
from archc.planning.training.schedules import SCHEDULES, Schedule
from archc.planning.training.weights import WeightOptions, weight_bytes

TRAINED_DTYPES = ("float64", "float32", "bfloat16", "float16")
"""dtypes in which weights are trained and gradients are summed."""

ACTIVATIONS = ("graph", "megatron")
"""Where activations come from: the graph's ops, or a formula to compare them with."""

MOST_MICRO_BATCH = 1 << 16
"""No larger micro-batch is looked for."""


def estimate_training(
    spec_or_graph: Source,
    *,
    micro_batch_size: int = 1,
    micro_batches: int | None = None,
    max_model_len: int | None = None,
    source_len: int | None = None,
    dtype: str | None = None,
    grad_dtype: str | None = None,
    optimizer: str = "adamw",
    master_weights: bool = True,
    zero: int = 0,
    recompute: str = "none",
    sequence_parallel: bool = False,
    schedule: str = "1f1b",
    virtual_stages: int = 2,
    loss: str = "plain",
    loss_chunk: int | None = None,
    parallel: Parallel | None = None,
    gpu: str | Device | None = None,
    gpus: int | None = None,
    activations: str = "graph",
    kernels: Kernels = "cuda",
) -> Training:
    """Memory of training a spec, a graph, a file or a shipped name, on a rank of each stage, in bytes.

    A step runs ``micro_batches`` (default: as many as stages) of ``micro_batch_size`` sequences on each copy. ``master_weights``
    are float32 copies of what is narrower. ``zero`` 1 to 3 is ZeRO over dp x cp. ``virtual_stages`` are runs of layers a
    stage has under ``schedule`` ``interleaved``. ``loss`` is ``plain``, cross-entropy of a model's logits, or ``fused``, that of
    ``archc train``; ``loss_chunk`` tokens have logits at once. ``gpus`` without dp in ``parallel`` are as many copies as fit
    beside tp, pp and cp. ``activations`` ``megatron`` takes the formula of
    arXiv 2205.05198 instead of the graph's. ``kernels`` are those that run, "cuda" or "cpu": what autograd keeps differs.

    Raises:
        ArchcError: the spec has problems.
        SpecError: an option or a cut can't be; every reason is listed.
    """
    graph = as_graph(spec_or_graph)
    problems: list[str] = []
    given: dict[str, Any] = {
        "micro_batch_size": micro_batch_size,
        "micro_batches": micro_batches,
        "max_model_len": max_model_len,
        "source_len": source_len,
        "loss_chunk": loss_chunk,
        "virtual_stages": virtual_stages,
        "gpus": gpus,
    }
    length = length_of(graph, max_model_len)
    split = with_copies(parallel or Parallel(), gpus, problems)
    device = known_device(gpu, problems)
    options = TrainingOptions(
        dtype=known_dtype("dtype", dtype or graph.dtype, problems, TRAINED_DTYPES) or "float32",
        grad_dtype=known_dtype("grad_dtype", grad_dtype, problems, TRAINED_DTYPES),
        optimizer=optimizer,
        master_weights=master_weights,
        zero=zero,
        micro_batch_size=micro_batch_size,
        micro_batches=split.pp if micro_batches is None else micro_batches,
        max_model_len=length,
        source_len=(source_len or length) if graph.reads_encoder else None,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        schedule=schedule,
        virtual_stages=virtual_stages if schedule == "interleaved" else 1,
        loss_chunk_tokens=loss_chunk,
        activations=activations,
        kernels=kernels,
        loss=loss,
    )
    problems += _option_problems(graph, options, given)
    problems += _split_problems(graph, options, split)
    sharding = shard(graph, replace(split, pp=split.pp * max(options.virtual_stages, 1)), vocab_multiple=1)
    problems += [problem for problem in sharding.problems if problem not in problems]
    if problems:
        raise SpecError([Problem(message=message, code="training") for message in problems])
    return _Estimator(graph, options, split, sharding).training(device)


class _Estimator:
    """One model under one set of options that hold together."""

    def __init__(self, graph: Graph, options: TrainingOptions, parallel: Parallel, sharding: Sharding) -> None:
        self.graph, self.options, self.parallel, self.sharding = graph, options, parallel, sharding
        rule = OPTIMIZERS[options.optimizer]
        held = WeightOptions(options.dtype, rule, options.master_weights, options.grad_dtype, options.zero)
        self.kept = self._kept()
        self.weights = [weight_bytes(self._own(stage), parallel, held) for stage in range(parallel.pp)]

    def _kept(self) -> KeptByStages | FormulaByStages:
        options = self.options
        recompute: Recompute = next(mode for mode in RECOMPUTE if mode == options.recompute)
        if options.activations == "megatron":
            return FormulaByStages(
                self.graph,
                self.sharding.stages,
                self.parallel,
                seq_len=options.max_model_len,
                recompute=recompute,
                sequence_parallel=options.sequence_parallel,
            )
        return KeptByStages(
            self.graph,
            self.sharding.stages,
            self.parallel,
            seq_len=options.max_model_len,
            source_len=options.source_len,
            dtype=options.dtype,
            recompute=recompute,
            sequence_parallel=options.sequence_parallel,
            kernels=options.kernels,
            is_trunk=options.loss == "fused",
        )

    def training(self, device: Device | None) -> Training:
        """The whole result."""
        options = self.options
        kept = self.kept.at(options.micro_batch_size)
        found = Training(
            name=self.graph.name,
            options=options,
            parallel=self.parallel,
            stages=self.stages(kept, options.micro_batch_size),
            left_out=list(self.kept.left_out),
            notes=list(self._notes()),
            device=device,
        )
        if device is not None:
            found.largest_micro_batch = largest_that_fits(
                lambda size: self.peak(size) <= device.memory_bytes, below=MOST_MICRO_BATCH
            )
        return found

    def peak(self, micro_batch_size: int) -> int:
        """Bytes of the stage that needs the most."""
        return max(stage.peak_bytes for stage in self.stages(self.kept.at(micro_batch_size), micro_batch_size))

    def stages(self, kept: list[StageActivations], micro_batch_size: int) -> list[RankMemory]:
        """A rank of each stage, with the micro-batches that it has in flight."""
        options, parallel = self.options, self.parallel
        schedule = SCHEDULES[options.schedule]
        tokens = micro_batch_size * -(-options.max_model_len // parallel.cp)
        found: list[RankMemory] = []
        for index in range(parallel.pp):
            own = [kept[stage.index] for stage in self._own(index)]
            in_flight = self._in_flight(schedule, index)
            is_last = index == parallel.pp - 1
            found.append(
                RankMemory(
                    stage=index,
                    layers=sum(len(stage.layers) for stage in self._own(index)),
                    weights=self.weights[index],
                    activations=_times(own, in_flight, self._outside_in_flight(index, in_flight)),
                    in_flight=in_flight,
                    recompute_working=max(one.working for one in own),
                    activation_gradients=max(one.gradients for one in own),
                    loss=loss_bytes(
                        self.graph,
                        parallel,
                        tokens=tokens,
                        dtype=options.dtype,
                        loss_chunk=options.loss_chunk_tokens,
                        loss=options.loss,
                    )
                    if is_last
                    else None,
                    losses_in_flight=in_flight if schedule.keeps_losses and parallel.pp > 1 else 1,
                )
            )
        return found

    def _own(self, index: int) -> list[Stage]:
        """The runs of layers of a stage: every ``pp``-th."""
        return self.sharding.stages[index :: self.parallel.pp]

    def _in_flight(self, schedule: Schedule, index: int) -> int:
        options = self.options
        if self.parallel.pp == 1:
            return 1
        return schedule.in_flight(index, self.parallel.pp, options.micro_batches, options.virtual_stages)

    def _outside_in_flight(self, index: int, in_flight: int) -> int:
        """Micro-batches of which a stage keeps what stands outside of layers: interleaved, only one run of it has that."""
        if self.options.virtual_stages == 1:
            return in_flight
        return 1 if index == self.parallel.pp - 1 else min(in_flight, self.options.micro_batches)

    def _notes(self) -> Iterator[str]:
        options, parallel = self.options, self.parallel
        yield from self.sharding.notes
        if options.zero and parallel.dp * parallel.cp == 1:
            yield f"zero {options.zero} cuts nothing: dp x cp is 1"
        if options.sequence_parallel and parallel.tp == 1:
            yield "sequence parallelism cuts nothing: tp is 1"
        if parallel.tp > 1 and not options.sequence_parallel:
            yield "without sequence parallelism every tp rank keeps what lies between the cut products"
        if options.zero in (2, 3) and parallel.pp > 1:
            yield f"zero {options.zero} with pp shares out gradients after each micro-batch: more communication, as counted here"
        if self.graph.mtp is not None:
            yield "extra prediction layers (mtp) are left out"
        if options.activations == "megatron":
            yield "activations by the formula of arXiv 2205.05198 for GPT, not by the graph: of layers, 16-bit, with dropout"
        if self.graph.outputs.get("logits") is None:
            yield "there are no logits: no loss is counted"


def _times(runs: list[StageActivations], in_flight: int, outside_in_flight: int) -> dict[str, int]:
    """Kind -> bytes of so many passes, spread evenly over a stage's runs of layers, rounded up."""
    sums: dict[str, int] = {}
    for run in runs:
        for name, count_bytes in run.by_layer.items():
            sums[name] = sums.get(name, 0) + count_bytes
    outside = sums.pop(OUTSIDE, 0) * outside_in_flight
    found = {name: -(-total * in_flight // len(runs)) for name, total in sums.items()}
    return {OUTSIDE: outside, **found} if outside else found


def _option_problems(graph: Graph, options: TrainingOptions, given: dict[str, Any]) -> Iterator[str]:
    """What is wrong with an option by itself."""
    yield from below_one(given)
    yield from unread_source(graph, given["source_len"])
    try:
        optimizer_named(options.optimizer)
    except ArchcError as error:
        yield str(error)
    words = (
        ("recompute", options.recompute, RECOMPUTE),
        ("schedule", options.schedule, tuple(SCHEDULES)),
        ("activations", options.activations, ACTIVATIONS),
        ("loss", options.loss, LOSSES),
    )
    for name, value, known in words:
        yield from unknown_word(name, value, known)
    if options.activations == "megatron":
        yield from formula_problems(graph)
    if options.zero not in range(4):
        yield f"zero should be 0, 1, 2 or 3 (found {options.zero})"


def _split_problems(graph: Graph, options: TrainingOptions, split: Parallel) -> Iterator[str]:
    """What is wrong between options and ranks."""
    if options.schedule == "interleaved":
        if split.pp == 1:
            yield "schedule: interleaved needs stages (pp above 1)"
        elif options.micro_batches % split.pp:
            yield f"schedule: interleaved needs micro_batches, {options.micro_batches}, to be a multiple of pp, {split.pp}"
    if split.ep > 1 and split.tp > 1 and not options.sequence_parallel:
        yield f"ep {split.ep} with tp {split.tp} needs sequence parallelism: else each tp rank would send the same tokens"
    for name, tokens in (("max_model_len", options.max_model_len), ("source_len", options.source_len)):
        if tokens is not None and split.cp > 1 and tokens % (2 * split.cp):
            yield f"{name}: {tokens:,} tokens are no multiple of 2 x cp, {2 * split.cp}: a ring gives each rank two equal pieces"
    if options.sequence_parallel and options.max_model_len % (max(split.tp, 1) * max(split.cp, 1)):
        yield f"max_model_len: {options.max_model_len:,} tokens can't be cut into tp x cp, {split.tp * split.cp}, equal parts"
    yield from context_problems(graph, max(split.cp, 1))
