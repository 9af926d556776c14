"""What a file must survive before it counts as exported. What can't be run as it is has a float32 twin that can."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from archc.errors import ArchcError, CheckFailedError
from archc.graph.depth import shallow
from archc.graph.graph import Graph, param_bytes
from archc.ir.values import MODEL_DTYPE, Param
from archc.units import gib
from archc_exporters.onnx import check_child
from archc_exporters.onnx.cache_dtype import rounded_caches
from archc_exporters.onnx.check_child import Call, Job, RefusedError
from archc_exporters.onnx.feeds import given_feeds, whole_feeds
from archc_exporters.onnx.lower import lower_parts
from archc_exporters.onnx.memory import free_memory_bytes
from archc_exporters.onnx.parts import graph_inputs, is_whole
from archc_exporters.onnx.sources import NoWeights, RandomWeights
from archc_exporters.onnx.target import Target
from archc_exporters.onnx.trial import Cost, Feeds, Talks, saved, time_limit_seconds, try_file
from archc_exporters.onnx.weights import DTYPES, NUMPY_DTYPES, Array, WeightSource
from archc_exporters.onnx.write import MODEL, Progress, write_files

_TWIN_LIMIT_BYTES = 2 << 30
"""A twin that nobody asked for is no larger: it is written and run while the user waits."""

Rows = Sequence[tuple[Array, Array]]
"""A conversation: (new tokens (batch, seq), right-padded; how many of each row are valid), a call after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An export to be checked: what it was made from."""

    graph: Graph
    target: Target
    weights: WeightSource
    max_model_len: int

    @property
    def has_data(self) -> bool:
        """Whether the file's weights lie beside it."""
        return not isinstance(self.weights, NoWeights)

    def needed_bytes(self) -> int:
        """What the weights take in float32, as which onnxruntime's CPU computes float16 too."""
        return sum(param_bytes(param, "float32") for param in self.graph.params().values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that runs, for a judge.

    Attributes:
        graph: what the file computes; that of a twin may have fewer layers than what was exported.
        dtype: of the file's weights and activations.
        quantized: weights are integers in the file, or caches are rounded, so that its outputs are near what ``read`` gives,
            and no nearer.
        prune_head: whether outputs are those of each row's last valid token only, (batch, 1, width).
        ragged_prompts: whether the first call of a conversation may have rows of different lengths.
        read: the numbers of one of the graph's weights as the file's dtype holds them, in float32.
        run: outputs of every call of every conversation, by name; on empty caches each. ``in_process`` saves the start of a
            process and risks this one. ``given`` are inputs that stay the same in all of them, an encoder's or the length of
            a prefix, with as many rows as the largest batch.
        encode: all outputs of every pass, by the pass's name and their own, of a file that sees all tokens at once; a pass
            is the file's inputs.
    """

    graph: Graph
    dtype: str
    max_model_len: int
    quantized: bool
    prune_head: bool
    ragged_prompts: bool
    read: Callable[[str], Array]
    run: Callable[..., Mapping[str, Sequence[Array]]]
    encode: Callable[..., Mapping[str, Mapping[str, Array]]]


class Judge(Protocol):
    """Compares a file with something else that computes the same, and gives figures: plain data, one mapping a comparison.

    Raises:
        CheckFailedError: they differ.
    """

    def __call__(self, file: Written) -> Sequence[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be run: the file itself where ``not_run`` is empty; else the twin, or nothing."""

    not_run: str
    twin: Subject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found, in words and figures, and what the trials took."""

    lines: tuple[str, ...] = ()
    comparisons: tuple[dict[str, Any], ...] = ()
    peak_bytes: int | None = None


def held_bytes(*models: ir.Model) -> int:
    """What the weights take while onnxruntime's CPU runs the models: floats as float32, blocks of integers as they are."""
    values = [value for model in models for value in model.graph.initializers.values()]
    return sum(_held(value.const_value) for value in values if value.const_value is not None)


def _held(tensor: ir.TensorProtocol) -> int:
    return tensor.size * 4 if tensor.dtype.is_floating_point() else tensor.nbytes


def plan_trial(subject: Subject, *models: ir.Model, judged: bool) -> Plan:
    """Decide before anything is written whether the file can be run, or a twin of it.

    Raises:
        ArchcError: it should be judged, and nothing of it can be run.
    """
    free = free_memory_bytes()
    # The judge holds all weights in float32, when the process that ran the file has ended.
    needed = max(held_bytes(*models), subject.needed_bytes() if judged else 0)
    not_run = _objection(subject, needed, free)
    if not not_run:
        return Plan(not_run="", twin=None)
    twin = replace(
        subject,
        graph=shallow(subject.graph),
        target=twin_target(subject.target),
        weights=subject.weights if subject.has_data else RandomWeights(0, DTYPES["float32"]),
    )
    limit = free // 2 if judged else min(free // 2, _TWIN_LIMIT_BYTES)
    needed = twin.needed_bytes()
    if needed <= limit:
        return Plan(not_run=not_run, twin=twin)
    layers = f"{twin.graph.num_layers} of {subject.graph.num_layers} layers"
    too_large = f"its float32 twin of {layers} needs {gib(needed)}, more than {gib(limit)}"
    if judged:
        raise ArchcError(f"{subject.graph.name} can't be compared with torch here: {not_run}, and {too_large}")
    return Plan(not_run=f"{not_run}, and {too_large}", twin=None)


def twin_target(target: Target) -> Target:
    """The same forms of ops in float32: the CPU has the kernels that CUDA has for 16 bits, and no rounded caches of its own."""
    return replace(target, dtype="float32", kernel_dtype=target.form_dtype, kv_cache_dtype="model")


def _objection(subject: Subject, needed: int, free: int) -> str:
    if not subject.has_data:
        return "the weights are not in the file"
    if subject.target.dtype == "bfloat16":
        return "onnxruntime's CPU has no bfloat16"
    if any(form.dtype == ir.DataType.FLOAT8E4M3FN for form in rounded_caches(subject.graph, subject.target).values()):
        return "onnxruntime's CPU has no float8 caches"
    if needed > free // 2:
        return f"the weights take {gib(needed)} in memory, more than half of the free memory, {gib(free)}"
    return ""


def check_export(
    path: Path, subject: Subject, plan: Plan, *, judge: Judge | None = None, run: bool = True, progress: Progress | None
) -> Outcome:
    """Run what the plan says, ``run`` for finite numbers at two sizes, and let the judge compare.

    Raises:
        CheckFailedError: the file or its twin does not run, gives numbers that are not finite, or is judged wrong.
        ArchcError: there is no room for a twin that should be judged.
    """
    if not plan.not_run:
        return _tried(path, subject, judge, run, progress, "run")
    not_run = f"not run: {plan.not_run}"
    if plan.twin is None:
        return Outcome(lines=(not_run,))
    needed, free = plan.twin.needed_bytes(), shutil.disk_usage(path.parent).free
    if needed > free:
        no_room = f"its float32 twin needs {gib(needed)}, the disk has {gib(free)}"
        if judge is not None:
            raise ArchcError(f"{subject.graph.name} can't be compared with torch: {plan.not_run}, and {no_room}")
        return Outcome(lines=(f"{not_run}, and {no_room}",))
    with tempfile.TemporaryDirectory(prefix="twin-", dir=path.parent) as folder:
        twin = plan.twin
        lowered = lower_parts(twin.graph, target=twin.target, weights=twin.weights, max_model_len=twin.max_model_len)
        write_files({name: model for name, (model, _) in lowered.items()}, Path(folder), progress)
        what = f"float32 twin, {twin.graph.num_layers} of {subject.graph.num_layers} layers"
        outcome = _tried(Path(folder) / MODEL, twin, judge, run, progress, what)
    return replace(outcome, lines=(not_run, *outcome.lines))


def _tried(
    path: Path, subject: Subject, judge: Judge | None, run: bool, progress: Progress | None, what: str
) -> Outcome:
    costs: list[Cost] = []
    lines: list[str] = []
    comparisons: Sequence[Mapping[str, Any]] = ()
    if run:
        passes, given = _passes(subject.graph), given_feeds(subject.graph, (5, 3))
        places = {} if passes else _places(subject)
        costs.append(_try(path, _talks(places, subject), subject, None, progress, given=given, passes=passes))
        lines.append(f"{what}: {'; '.join(passes or places)}; on CPUExecutionProvider, all numbers finite")
    if judge is not None:
        with tempfile.TemporaryDirectory(prefix="outputs-", dir=path.parent) as keep:
            file = Written(
                graph=subject.graph,
                dtype=subject.target.dtype,
                max_model_len=subject.max_model_len,
                quantized=subject.target.quant is not None or bool(rounded_caches(subject.graph, subject.target)),
                prune_head=subject.target.prune_head,
                ragged_prompts=not subject.target.sliding_window_cache,
                read=_reader(subject),
                run=_runner(path, subject, Path(keep), costs, progress),
                encode=_encoder(path, subject, Path(keep), costs, progress),
            )
            comparisons = judge(file)
        lines.append(f"{what}: compared, {len(comparisons)} ways of cutting tokens into calls")
    peaks = [cost.peak_bytes for cost in costs if cost.peak_bytes is not None]
    return Outcome(
        lines=tuple(lines),
        comparisons=tuple(dict(each) for each in comparisons),
        peak_bytes=max(peaks, default=None),
    )


def _try(
    path: Path,
    talks: Talks,
    subject: Subject,
    keep: Path | None,
    progress: Progress | None,
    *,
    given: Feeds | None = None,
    passes: Mapping[str, Feeds] | None = None,
) -> Cost:
    return try_file(
        path,
        talks,
        capacity=_capacity(talks, subject.graph),
        limit_seconds=time_limit_seconds(subject.needed_bytes()),
        keep=keep,
        finite_caches=_writes_all_rows(subject),
        progress=progress,
        given=given,
        passes=passes,
    )


def _writes_all_rows(subject: Subject) -> bool:
    """GroupQueryAttention's rolling cache leaves unused rows of a fresh output as the memory was."""
    return not subject.target.sliding_window_cache


def _capacity(talks: Talks, graph: Graph) -> int:
    """Rows for the longest conversation, its padding included."""
    return graph.capacity(max((sum(len(call["ids"][0]) for call in calls) for calls in talks.values()), default=1))


def _places(subject: Subject) -> dict[str, Rows]:
    """Two sizes of batch and seq, different in both, so that a shape that works at one size only is found.

    Seven tokens fit any file: even a rope table for one position has as many rows as the smallest capacity, 8.
    """
    short = 3 if subject.target.sliding_window_cache else 2
    return {
        "batch 1, prefill 4, chunk 2, decode 1": _random_rows(subject.graph, [(4,), (2,), (1,)]),
        f"batch 2, prefill 3 and {short}, decode 2": _random_rows(subject.graph, [(3, short), (1, 1), (1, 1)]),
    }


def _passes(graph: Graph) -> dict[str, Feeds]:
    """Two sizes of what is seen at once, where anything is, in names that say them."""
    if not is_whole(graph, "model"):
        return {}
    if all(len(graph.inputs[name].shape) != 2 for name in graph_inputs(graph, "model")):
        return {f"batch {batch}": whole_feeds(graph, (1,) * batch) for batch in (1, 2)}
    return {
        "batch 1, 4 tokens": whole_feeds(graph, (4,)),
        "batch 2, 7 and 5 tokens": whole_feeds(graph, (7, 5)),
    }


def _random_rows(graph: Graph, calls: Sequence[tuple[int, ...]]) -> Rows:
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, graph.vocab_size or 1, (len(valid), max(valid))), np.array(valid, np.int64)) for valid in calls
    ]


def _talks(conversations: Mapping[str, Rows], subject: Subject) -> dict[str, list[Call]]:
    def columns(ids: Array) -> int:
        return 1 if subject.target.prune_head else ids.shape[1]

    return {
        name: [Call(ids=ids.tolist(), valid=valid.tolist(), columns=columns(ids)) for ids, valid in rows]
        for name, rows in conversations.items()
    }


def _reader(subject: Subject) -> Callable[[str], Array]:
    params = subject.graph.params()
    own = NUMPY_DTYPES[subject.target.ir_dtype]

    def read(name: str) -> Array:
        param: Param = params[name]
        held = own if param.dtype == MODEL_DTYPE else NUMPY_DTYPES[DTYPES[param.dtype]]
        array = subject.weights.read(name, param).astype(held, copy=False).astype(np.float32, copy=False)
        subject.weights.release(name)
        return array

    return read


def _runner(
    path: Path, subject: Subject, keep: Path, costs: list[Cost], progress: Progress | None
) -> Callable[..., Mapping[str, Sequence[Array]]]:
    def run(
        conversations: Mapping[str, Rows], *, in_process: bool = False, given: Feeds | None = None
    ) -> Mapping[str, Sequence[Array]]:
        talks = _talks(conversations, subject)
        if in_process:
            _run_here(path, subject, keep, talks, given=given)
        else:
            costs.append(_try(path, talks, subject, keep, progress, given=given))
        return {
            name: [np.load(keep / f"{name}.{number}.npy", mmap_mode="r") for number in range(len(rows))]
            for name, rows in conversations.items()
        }

    return run


def _encoder(
    path: Path, subject: Subject, keep: Path, costs: list[Cost], progress: Progress | None
) -> Callable[..., Mapping[str, Mapping[str, Array]]]:
    def encode(passes: Mapping[str, Feeds], *, in_process: bool = False) -> Mapping[str, Mapping[str, Array]]:
        if in_process:
            _run_here(path, subject, keep, {}, passes=passes)
        else:
            costs.append(_try(path, {}, subject, keep, progress, passes=passes))
        return {name: dict(np.load(keep / f"{name}.npz")) for name in passes}

    return encode


def _run_here(
    path: Path,
    subject: Subject,
    keep: Path,
    talks: Talks,
    *,
    given: Feeds | None = None,
    passes: Mapping[str, Feeds] | None = None,
) -> None:
    capacity, caches = _capacity(talks, subject.graph), _writes_all_rows(subject)
    job = Job(model=str(path), capacity=capacity, threads=1, keep=str(keep), caches=caches, talks=talks)
    with tempfile.TemporaryDirectory(prefix="archc-feeds-") as folder:
        job |= saved(Path(folder), given, passes)
        try:
            check_child.run(job, lambda at, done, of: None)
        except RefusedError as refused:
            raise CheckFailedError(f"{path.name}: {refused}") from refused
