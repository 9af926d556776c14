"""What rounding costs: logits of a file with integer weights or caches beside those of its float twin."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx_ir import DataType

from archc.graph.depth import shallow
from archc.units import gib
from archc_exporters.onnx.cache_dtype import rounded_caches
from archc_exporters.onnx.check import Subject
from archc_exporters.onnx.check_child import Call
from archc_exporters.onnx.feeds import given_feeds, whole_feeds
from archc_exporters.onnx.lower import lower_parts
from archc_exporters.onnx.memory import free_memory_bytes
from archc_exporters.onnx.parts import is_whole
from archc_exporters.onnx.trial import time_limit_seconds, try_file
from archc_exporters.onnx.weights import Array
from archc_exporters.onnx.write import MODEL, Progress, write_files

_TWIN_LIMIT_BYTES = 4 << 30
"""Of float weights that are written and run while the user waits; a larger model is measured at reduced depth."""
_BATCH, _PREFILL, _DECODE = 2, 32, 16
_TALK = "quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityLoss:
    """How far outputs are off, over every token of a conversation of random ids.

    Attributes:
        max_error: largest difference.
        mean_error: mean of the differences' magnitudes.
        relative_rms: root mean square of the differences over that of the float file's outputs around their mean.
        top1_agreement: share of tokens whose largest output is the same one.
        tokens: that were compared.
        measured_on: which files, in words.
    """

    max_error: float
    mean_error: float
    relative_rms: float
    top1_agreement: float
    tokens: int
    measured_on: str


def quality_loss(wanted: Array, found: Array, measured_on: str = "") -> QualityLoss:
    """Compare outputs (…, width), in float64."""
    wanted, found = (array.astype(np.float64).reshape(-1, array.shape[-1]) for array in (wanted, found))
    error = found - wanted
    spread = float(np.sqrt(np.mean((wanted - wanted.mean()) ** 2)))
    return QualityLoss(
        max_error=float(np.abs(error).max()),
        mean_error=float(np.abs(error).mean()),
        relative_rms=float(np.sqrt(np.mean(error**2))) / spread if spread else 0.0,
        top1_agreement=float(np.mean(wanted.argmax(-1) == found.argmax(-1))),
        tokens=len(wanted),
        measured_on=measured_on,
    )


def compare_files(
    float_path: Path, rounded_path: Path, subject: Subject, measured_on: str, progress: Progress | None = None
) -> QualityLoss:
    """Both files on the same seeded ids, prefill and decode, each in a process of its own.

    Raises:
        CheckFailedError: a file doesn't run.
    """
    lengths = [min(_PREFILL, max(2, subject.max_model_len))] * _BATCH
    whole = is_whole(subject.graph, "model")
    calls = [] if whole else _calls(subject)
    passes, given = (
        ({_TALK: whole_feeds(subject.graph, lengths)}, None) if whole else ({}, given_feeds(subject.graph, lengths))
    )
    outputs: list[Array] = []
    for path in (float_path, rounded_path):
        with tempfile.TemporaryDirectory(prefix="quality-", dir=path.parent) as keep:
            try_file(
                path,
                {_TALK: calls} if calls else {},
                given=given,
                passes=passes,
                capacity=subject.graph.capacity(sum(len(call["ids"][0]) for call in calls) or 1),
                limit_seconds=time_limit_seconds(subject.needed_bytes()),
                keep=Path(keep),
                # A rolling cache's unused rows are whatever lay in memory; what they may spoil is in the logits.
                finite_caches=False,
                progress=progress,
            )
            if whole:
                with np.load(Path(keep) / f"{_TALK}.npz") as held:
                    outputs.append(held[next(iter(subject.graph.outputs))])
                continue
            parts = [np.load(Path(keep) / f"{_TALK}.{number}.npy") for number in range(len(calls))]
        outputs.append(np.concatenate(parts, 1))
    wanted, found = outputs
    return quality_loss(wanted, found, measured_on)


def measure(path: Path, subject: Subject, progress: Progress | None = None) -> QualityLoss | str:
    """The loss of a written file, or of a float32 pair of reduced depth that stands for it; else why it was not measured.

    Raises:
        CheckFailedError: a file doesn't run.
    """
    objection, twin = _twin(subject)
    if twin is None:
        return f"not measured: {objection}"
    whole = twin.graph is subject.graph
    own = twin.target
    target = replace(subject.target, dtype=own.dtype, kernel_dtype=own.kernel_dtype, prune_head=False)
    if not whole:
        # Its layers have other numbers, so the caches' steps don't fit them.
        target = replace(target, kv_cache_dtype="model")
    if target.quant is None and not rounded_caches(subject.graph, target):
        return f"not measured: {objection}, and the caches of fewer layers have no steps"
    itself = whole and subject.has_data and target == subject.target
    needed = twin.needed_bytes() * (1 if itself else 2)
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        return f"not measured: the float twin needs {gib(needed)} of disk, {gib(free)} are free"
    layers = "" if whole else f", {twin.graph.num_layers} of {subject.graph.num_layers} layers"
    with tempfile.TemporaryDirectory(prefix="float-", dir=path.parent) as folder:
        float_path = _written(twin, Path(folder) / "float", progress)
        if itself:
            return compare_files(float_path, path, twin, f"the file and its {target.dtype} twin", progress)
        rounded = _written(replace(twin, target=target), Path(folder) / "rounded", progress)
        return compare_files(
            float_path, rounded, twin, f"two {target.dtype} twins, one rounded{layers} ({objection})", progress
        )


def _written(subject: Subject, folder: Path, progress: Progress | None) -> Path:
    folder.mkdir()
    lowered = lower_parts(
        subject.graph, target=subject.target, weights=subject.weights, max_model_len=subject.max_model_len
    )
    write_files({name: model for name, (model, _) in lowered.items()}, folder, progress)
    return folder / MODEL


def _twin(subject: Subject) -> tuple[str, Subject | None]:
    """(why the file itself is not what is measured, the float file to measure against, if one can be run)."""
    free = free_memory_bytes()
    limit = min(free // 2, _TWIN_LIMIT_BYTES)
    target = replace(subject.target, quant=None, kv_cache_dtype="model", prune_head=False)
    if not subject.has_data:
        return "the weights are not in the file", None
    if any(form.dtype == DataType.FLOAT8E4M3FN for form in rounded_caches(subject.graph, subject.target).values()):
        return "onnxruntime's CPU has no float8 caches", None
    why = [
        text
        for text, true in (
            ("onnxruntime's CPU has no bfloat16", target.dtype == "bfloat16"),
            ("the file gives the last token's logits only", subject.target.prune_head),
        )
        if true
    ]
    if target.dtype == "bfloat16":
        # In the forms of the file: the CPU has in float32 what CUDA has in 16 bits.
        target = replace(target, dtype="float32", kernel_dtype="bfloat16")
    twin = replace(subject, target=target)
    if twin.needed_bytes() > limit:
        why.append(f"a float twin would need {gib(twin.needed_bytes())}, more than {gib(limit)}")
        twin = replace(twin, graph=shallow(subject.graph))
    if twin.needed_bytes() > limit:
        why.append(f"and {gib(twin.needed_bytes())} at {twin.graph.num_layers} layers")
        return ", ".join(why), None
    return ", ".join(why), twin


def _calls(subject: Subject) -> Sequence[Call]:
    """A batch of random ids, as long as the file's positions allow."""
    rng = np.random.default_rng(0)
    vocabulary = subject.graph.vocab_size or 1
    length = min(_PREFILL + _DECODE, max(2, subject.max_model_len))
    decode = min(_DECODE, length // 2)
    make: Callable[[int], Call] = lambda seq: Call(  # noqa: E731
        ids=rng.integers(0, vocabulary, (_BATCH, seq)).tolist(), valid=[seq] * _BATCH, columns=seq
    )
    return [make(length - decode), *(make(1) for _ in range(decode))]
