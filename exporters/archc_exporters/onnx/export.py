"""The ONNX exporter: a graph and its weights become ``model.onnx`` and ``model.onnx.data``. Torch is never imported."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import onnxruntime as ort

from archc.checkpoint.filling import is_foreign
from archc.errors import ArchcError
from archc.estimation.estimate import DEFAULT_LENGTH_TOKENS
from archc.graph.graph import Graph, param_bytes
from archc.spec.resolved import Resolved
from archc_exporters.onnx.cache_dtype import rounded_caches
from archc_exporters.onnx.calibrate import calibrated
from archc_exporters.onnx.check import Judge, Outcome, Subject, check_export, plan_trial
from archc_exporters.onnx.checkpoint import SafetensorsWeights
from archc_exporters.onnx.context import OPSETS, Lowering
from archc_exporters.onnx.contract import write_contract
from archc_exporters.onnx.folder import require_place, staged
from archc_exporters.onnx.foreign import ForeignWeights
from archc_exporters.onnx.genai.config import GenaiFiles, genai_files
from archc_exporters.onnx.lower import IR_VERSION, lower_parts
from archc_exporters.onnx.parts import fixed_tokens
from archc_exporters.onnx.placement.check import require_provider
from archc_exporters.onnx.placement.report import placed_together
from archc_exporters.onnx.quality import QualityLoss, measure
from archc_exporters.onnx.quantize import together
from archc_exporters.onnx.report import (
    Choice,
    ExportReport,
    cache_inputs,
    capacity_formula,
    count_nodes,
    notes,
)
from archc_exporters.onnx.sources import NoWeights, RandomWeights
from archc_exporters.onnx.states import ENCODER_FILE
from archc_exporters.onnx.structure import check_structure
from archc_exporters.onnx.target import Io, Provider, Target, quantization
from archc_exporters.onnx.tokenizer_files import TokenizerFiles, tokenizer_files
from archc_exporters.onnx.weights import WeightSource
from archc_exporters.onnx.write import DATA, MODEL, Progress, write_files


def export(
    graph: Graph,
    out: Path,
    *,
    provider: Provider = "cuda",
    dtype: str = "float16",
    io: Io = "archc",
    batched_chunks: bool = False,
    sliding_window_cache: bool = False,
    prune_head: bool = False,
    kv_cache_dtype: str | None = None,
    calibration: Path | None = None,
    quant: str | None = None,
    quant_block_size: int = 32,
    quant_zero_points: bool = False,
    quant_embedding: bool | None = None,
    quant_head: bool = True,
    weights: Path | None = None,
    no_weights: bool = False,
    seed: int = 0,
    max_model_len: int | None = None,
    spec: Resolved | None = None,
    tokenizer: Path | None = None,
    overwrite: bool = False,
    check: bool = True,
    check_provider: str | None = None,
    judge: Judge | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write ``model.onnx``, ``model.onnx.data`` and ``archc.json``; an earlier export stays until the new one is whole.

    A decoder that reads an encoder has that in ``encoder.onnx``, over the same data. What keeps nothing between calls, a
    bidirectional stack, takes ``input_ids`` and their ``attention_mask``, or ``pixel_values``, and nothing else.
    Without ``weights`` they are random, seeded by name; with it a safetensors file or a folder of them, under the names of
    ``graph.params()``, or a folder as transformers saves it; with ``no_weights`` their file is referred to and not written.
    ``overwrite`` allows a folder that holds files and no export.
    ``max_model_len`` bounds the positions of a rope table, by default ``max_position_embeddings``, or 4096.
    With ``spec``, that of the graph, ``spec.yaml`` and its tokenizer are written too; ``tokenizer`` is a tokenizer.json that
    takes its place, or a folder with one. ``kv_cache_dtype`` goes before what the cache policies say; int8 and int4 caches get
    their steps from a run over the ids in ``calibration``, or over random ones. ``quant`` is int4 or int8, the other ``quant_``
    choices are those of ``Quantization``. ``check`` runs the file on onnxruntime's CPU in a process of its own, where memory
    holds it; without it only the structure is checked. ``check_provider`` names the provider that must take every node but
    shape arithmetic. ``judge`` compares the file with something else.

    Raises:
        ArchcError: the weights don't fit, a file can't be written, or the graph can't be said in ONNX.
        CheckFailedError: the file was written and is wrong; it is not kept.
    """
    target = Target(
        provider=provider,
        dtype=dtype,
        io=io,
        batched_chunks=batched_chunks,
        sliding_window_cache=sliding_window_cache,
        prune_head=prune_head,
        kv_cache_dtype=kv_cache_dtype,
        quant=quantization(
            quant,
            block_size=quant_block_size,
            symmetric=not quant_zero_points,
            embedding=quant_embedding,
            head=quant_head,
        ),
    )
    if max_model_len is None:
        max_model_len = fixed_tokens(graph) or graph.max_position_embeddings or DEFAULT_LENGTH_TOKENS
    if max_model_len < 1:
        raise ArchcError(f"max_model_len should be positive (found {max_model_len})")
    if weights is not None and no_weights:
        raise ArchcError(f"either weights ({weights}) or no weights can be asked for, not both")
    require_place(out, overwrite=overwrite)
    beside = None if spec is None else tokenizer_files(spec, tokenizer)
    runtime = genai_files(graph, target, max_model_len=max_model_len, tokenizer=beside) if io == "genai" else None
    source = NoWeights() if no_weights else _weight_source(graph, weights, seed, target)
    subject = Subject(graph=graph, target=target, weights=source, max_model_len=max_model_len)
    subject, calibration_note = calibrated(subject, calibration, progress)
    lowered = lower_parts(graph, target=target, weights=subject.weights, max_model_len=max_model_len)
    models = {name: model for name, (model, _) in lowered.items()}
    model, ctx = lowered[MODEL]
    if calibration_note:
        ctx.remark(calibration_note)
    if target.quant is not None and len(models) > 1:
        ctx.remark("figures of integer weights count a table of both files twice; in their data it lies once")
    nodes = count_nodes(*models.values())
    plan = plan_trial(subject, *models.values(), judged=judge is not None) if check or judge is not None else None
    with staged(out, overwrite=overwrite) as stage:
        started = time.perf_counter()
        data_bytes = write_files(models, stage, progress, has_data=subject.has_data)
        written = time.perf_counter()
        structure = [check_structure(stage / name, has_data=subject.has_data) for name in models]
        placements = [require_provider(stage / name, check_provider) for name in models] if check_provider else []
        found = Outcome()
        if plan is not None:
            found = check_export(stage / MODEL, subject, plan, judge=judge, run=check, progress=progress)
        quality = _quality(stage / MODEL, subject, check, progress)
        checked = time.perf_counter()
        report = ExportReport(
            name=graph.name,
            dtype=target.dtype,
            files={str(out / path.name): path.stat().st_size for path in sorted(stage.iterdir())},
            weight_bytes=_weight_bytes(graph, target.dtype),
            opsets=dict(OPSETS),
            ir_version=IR_VERSION,
            onnxruntime=ort.__version__,
            max_model_len=max_model_len,
            capacity=capacity_formula(graph),
            nodes=nodes,
            caches=cache_inputs(ctx),
            choices=_choices(*(each for _, each in lowered.values())),
            checks=(*_named(structure, models), *found.lines),
            quantization=together([each.quantization for _, each in lowered.values()]),
            quality=quality,
            placement=placed_together(placements),
            comparisons=found.comparisons,
            seconds_writing=written - started,
            seconds_checking=checked - written,
            check_peak_bytes=found.peak_bytes,
            notes=(*_notes(ctx, beside, runtime), *([_absent(data_bytes)] if no_weights else [])),
        )
        for name, content in (runtime.files if runtime else {}).items():
            (stage / name).write_bytes(content)
        encoder = models.get(ENCODER_FILE)
        write_contract(stage, model, graph, report, target=asdict(target), spec=spec, tokenizer=beside, encoder=encoder)
    return report


def _notes(ctx: Lowering, tokenizer: TokenizerFiles | None, runtime: GenaiFiles | None) -> tuple[str, ...]:
    said = [tokenizer.note] if tokenizer and tokenizer.note else []
    return (*notes(ctx), *said, *(runtime.notes if runtime else ()))


def _quality(path: Path, subject: Subject, check: bool, progress: Progress | None) -> QualityLoss | str:
    if subject.target.quant is None and not rounded_caches(subject.graph, subject.target):
        return ""
    return measure(path, subject, progress) if check else "not measured: the file was not to be run"


def _absent(data_bytes: int) -> str:
    return (
        f"{DATA} is not written: {data_bytes:,} bytes, which another export of the same graph puts at the same offsets"
    )


def _weight_source(graph: Graph, weights: Path | None, seed: int, target: Target) -> WeightSource:
    if weights is None:
        return RandomWeights(seed, target.ir_dtype)
    if is_foreign(weights):
        return ForeignWeights(weights, graph)
    return SafetensorsWeights(weights, graph.params())


def _weight_bytes(graph: Graph, dtype: str) -> int:
    return sum(param_bytes(param, dtype) for param in graph.params().values())


def _choices(*files: Lowering) -> tuple[Choice, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for ctx in files:
        counts.update(ctx.choices)
    return tuple(Choice(op=op, form=form, count=count) for (op, form), count in counts.items())


def _named(lines: list[str], files: Iterable[str]) -> list[str]:
    """What was found of each file, under its name where there is more than one."""
    return lines if len(lines) == 1 else [f"{name}: {line}" for name, line in zip(files, lines, strict=True)]
