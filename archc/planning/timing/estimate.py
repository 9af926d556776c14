"""How long a prefill, a token and a training step take by the roofline, and what a budget costs: ``archc estimate --time``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from archc.errors import Problem, SpecError
from archc.estimation.cache import CacheOptions
from archc.estimation.estimate import length_of
from archc.expansion import Source, as_graph
from archc.graph.graph import Graph, resolve_dtype
from archc.ir.op import Pairs
from archc.planning.hardware import Device
from archc.planning.options import below_one, known_device, known_dtype, no_share, unknown_word, unread_source
from archc.planning.sharding import Parallel, Sharding
from archc.planning.timing.budget import Budget, spend
from archc.planning.timing.conventions import TIME_CONVENTIONS
from archc.planning.timing.flop_conventions import FORWARD_AGAIN, SOURCES, training_flops, unknown_convention
from archc.planning.timing.options import possible_sharding
from archc.planning.timing.roofline import COMPUTE_EFFICIENCY, LINK_EFFICIENCY, MEMORY_EFFICIENCY, Roof
from archc.planning.timing.stepping import Run, StepTime
from archc.planning.timing.work import StepName
from archc.units import gib, tensor_bytes

STEP_TOKENS = 1 << 22
"""Tokens of a training step over many ranks where nobody says: what large models are trained with, 4 M."""


@dataclass(slots=True, eq=False, repr=False)
class Timing:
    """An estimate, not a measurement: steps by name, on a device under stated efficiencies, with all options.

    ``batch_size`` are the sequences of all copies of the model together, ``micro_batch_size`` those of one pass of a training
    step on one copy.
    """

    name: str
    dtype: str
    kv_cache_dtype: str | None
    batch_size: int
    max_model_len: int
    source_len: int | None
    pairs: Pairs
    recompute: str
    micro_batch_size: int
    micro_batches: int
    overlap: float
    roof: Roof
    parallel: Parallel
    steps: dict[str, StepTime]
    budget: Budget
    notes: list[str] = field(default_factory=list[str])

    def to_json(self) -> dict[str, Any]:
        """Plain data: times in seconds as floats, FLOPs and bytes as integers."""
        return {
            "name": self.name,
            "is_measurement": False,
            "options": {
                "dtype": self.dtype,
                "kv_cache_dtype": self.kv_cache_dtype,
                "batch_size": self.batch_size,
                "max_model_len": self.max_model_len,
                "source_len": self.source_len,
                "pairs": self.pairs,
                "recompute": self.recompute,
                "micro_batch_size": self.micro_batch_size,
                "micro_batches": self.micro_batches,
                "overlap": self.overlap,
                "parallel": self.parallel.to_json(),
                "gpus": self.parallel.ranks,
            },
            "roof": self.roof.to_json(),
            "steps": {name: step.to_json() for name, step in self.steps.items()},
            "budget": self.budget.to_json(),
            "notes": self.notes,
            "conventions": TIME_CONVENTIONS,
        }


def estimate_time(
    spec_or_graph: Source,
    *,
    gpu: str | Device,
    gpus: int | None = None,
    parallel: Parallel | None = None,
    batch_size: int = 1,
    max_model_len: int | None = None,
    source_len: int | None = None,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
    link_efficiency: float = LINK_EFFICIENCY,
    overlap: float = 0.0,
    mfu: float | None = None,
    pairs: Pairs = "needed",
    recompute: str = "none",
    micro_batch_size: int | None = None,
    micro_batches: int | None = None,
    tokens: int | None = None,
    flops_convention: str = "archc",
    hardware: str | PathLike[str] | None = None,
) -> Timing:
    """Times of a prefill, a decode step and a training step by the roofline of a device. Never a measurement.

    Args:
        spec_or_graph: a spec, a file, a shipped name, or a graph.
        gpu: a device, or the name of one in the catalogue or in ``hardware``, a file of the same form.
        gpus: devices; without ``parallel`` they share heads (tp) as far as links and model allow, and copies are the rest.
        parallel: how the model is cut over ranks; ``gpus`` must be as many, or a multiple, which is taken as more copies (dp).
        batch_size: sequences at once, shared out over the copies (dp), at least one each.
        max_model_len: tokens of a sequence; by default the spec's ``max_position_embeddings``.
        compute_efficiency: share of the device's peak that products reach; ``memory_efficiency`` and ``link_efficiency`` alike.
        overlap: share of the communication that is hidden behind work, where there is as much.
        mfu: the training step takes what this share of the peak gives for the FLOPs of ``flops_convention``, instead.
        pairs: query-key pairs that count, ``needed`` or ``dense``.
        recompute: ``none``, ``selective`` or ``full``.
        micro_batch_size: sequences of one pass of a training step on one copy; by default ``batch_size``.
        micro_batches: passes before an optimizer step; by default 1 on one rank, else as many as make 2^22 tokens, and at least
            4 a stage.
        tokens: a budget to train on, in tokens.

    Raises:
        ArchcError: every option that is wrong, an unknown device, a split that the model can't have, a spec with problems.
    """
    graph = as_graph(spec_or_graph)
    length = length_of(graph, max_model_len)
    problems = below_one(
        {"batch_size": batch_size, "max_model_len": length, "source_len": source_len, "gpus": gpus, "tokens": tokens}
        | {"micro_batch_size": micro_batch_size, "micro_batches": micro_batches}
    )
    problems += no_share(
        {"compute_efficiency": compute_efficiency, "memory_efficiency": memory_efficiency, "mfu": mfu}
        | {"link_efficiency": link_efficiency}
    )
    if not 0 <= overlap <= 1:
        problems.append(f"overlap should be at least 0 and at most 1 (found {overlap:g})")
    problems += unknown_word("recompute", recompute, FORWARD_AGAIN)
    problems += unread_source(graph, source_len)
    own_dtype = known_dtype("dtype", dtype, problems)
    kv_dtype = known_dtype("kv_cache_dtype", kv_cache_dtype, problems)
    if flops_convention not in SOURCES:
        problems.append(unknown_convention(flops_convention))
    device = known_device(gpu, problems, hardware)
    sharding = possible_sharding(graph, parallel, gpus, device, problems)
    if problems or device is None or sharding is None:
        raise SpecError([Problem(message=message, code="option") for message in problems])
    model_dtype = own_dtype or graph.dtype
    peak, peak_dtype = device.peak(model_dtype)
    roof = Roof(device, peak_dtype, peak, compute_efficiency, memory_efficiency, link_efficiency)
    each = -(-batch_size // sharding.parallel.dp)
    options = CacheOptions(model_dtype, kv_dtype, each, length, source_len or length, None)
    micro = micro_batch_size or batch_size
    model = training_flops(graph, flops_convention, length=length, source_len=options.source_len)
    passes = micro_batches or _usual_passes(sharding.parallel, micro * model.tokens)
    run = Run(graph, sharding, roof, options, pairs, recompute, micro, passes, overlap)
    decodes = graph.mask != "bidirectional"
    wanted: tuple[StepName, ...] = ("prefill", "decode", "train_step") if decodes else ("forward", "train_step")
    steps = {name: run.step(name) for name in wanted}
    if mfu is not None:
        steps["train_step"] = steps["train_step"].at_share(mfu, model.per_token, roof, sharding.parallel.ranks)
    return Timing(
        name=graph.name,
        dtype=model_dtype,
        kv_cache_dtype=kv_dtype,
        batch_size=each * sharding.parallel.dp,
        max_model_len=length,
        source_len=options.source_len if graph.reads_encoder else None,
        pairs=pairs,
        recompute=recompute,
        micro_batch_size=micro,
        micro_batches=passes,
        overlap=overlap,
        roof=roof,
        parallel=sharding.parallel,
        steps=steps,
        budget=spend(steps["train_step"].tokens_per_s, model, roof, sharding.parallel.ranks, recompute, tokens),
        notes=[
            *sharding.notes,
            *_notes(graph, length, model.tokens),
            *_widened(model_dtype, peak_dtype, device),
            *_too_large(sharding, model_dtype, device),
        ],
    )


def _notes(graph: Graph, length: int, rows: int) -> Iterator[str]:
    if rows != length:
        yield f"a sequence of {graph.name} has {rows:,} tokens, whatever the length"
    elif graph.max_position_embeddings is not None and length > graph.max_position_embeddings:
        yield f"{length:,} tokens are more than the model is made for, {graph.max_position_embeddings:,}"
    if graph.mtp is not None:
        yield "extra prediction layers (mtp) are left out, in training, too"


def _widened(model_dtype: str, peak_dtype: str, device: Device) -> list[str]:
    if peak_dtype == model_dtype:
        return []
    return [f"{device.name} has no peak of {model_dtype}: products are taken at that of {peak_dtype}"]


def _too_large(sharding: Sharding, model_dtype: str, device: Device) -> list[str]:
    """Weights alone that one device can't hold: times are told all the same."""
    held = max(
        sum(tensor_bytes(one.elements, resolve_dtype(one.param.dtype, model_dtype)) * one.count for one in stage.params)
        for stage in sharding.stages
    )
    if held <= device.memory_bytes:
        return []
    return [f"the weights of one rank, {gib(held)}, are more than the {gib(device.memory_bytes)} of {device.name}"]


def _usual_passes(parallel: Parallel, tokens: int) -> int:
    if parallel.ranks == 1:
        return 1
    least = 4 * parallel.pp if parallel.pp > 1 else 1
    return max(least, -(-STEP_TOKENS // (tokens * parallel.dp)))
