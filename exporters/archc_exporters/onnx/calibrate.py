"""Steps of rounded caches: the float file reads tokens, and each channel's largest key and value are noted."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from archc.errors import ArchcError
from archc.units import gib
from archc_exporters.onnx.arrays import Array
from archc_exporters.onnx.cache_dtype import CacheForm, ScaledWeights, check_caches, rounded_caches
from archc_exporters.onnx.check import Subject
from archc_exporters.onnx.lower import lower_parts
from archc_exporters.onnx.memory import free_memory_bytes
from archc_exporters.onnx.session import Conversation, load_session
from archc_exporters.onnx.states import ENCODER, ENCODER_FILE, onnx_state_names
from archc_exporters.onnx.write import MODEL, Progress, write_files

_RANDOM_ROWS, _RANDOM_TOKENS = 4, 128


def calibrated(subject: Subject, tokens: Path | None, progress: Progress | None = None) -> tuple[Subject, str]:
    """The subject with scales for its rounded caches, and what the report should say; itself and nothing where none is.

    ``tokens`` is a file of ids, random ones without it. The float file is written into the system's folder for temporary
    files for the time being, and is run in this process.

    Raises:
        ArchcError: a cache can't be rounded, memory doesn't hold the float weights, or the file of ids is no such.
    """
    check_caches(subject.graph, subject.target)
    forms = rounded_caches(subject.graph, subject.target)
    if not forms:
        if tokens is not None:
            raise ArchcError(
                f"{tokens} is for calibration, but no cache is rounded: set kv_cache_dtype to int8 or int4"
            )
        return subject, ""
    if not subject.has_data:
        return subject, f"the steps of {len(forms)} rounded caches are not in the file, which has no weights"
    rows = _random(subject) if tokens is None else read_tokens(tokens, subject.graph.vocab_size)
    needed, free = subject.needed_bytes(), free_memory_bytes()
    if needed > free // 2:
        raise ArchcError(
            f"the steps of rounded caches come from a run of the float weights, {gib(needed)} in float32; that is more than "
            f"half of the free memory, {gib(free)}: calibrate on a larger machine, or keep the caches in {subject.target.dtype}"
        )
    names = onnx_state_names(subject.graph)
    try:
        largest = _largest(subject, rows, [names[state] for state in forms], progress)
    except OSError as error:
        raise ArchcError(f"the float file for calibration can't be written: {error}") from error
    scales = {names[state]: _steps(largest[names[state]], form) for state, form in forms.items()}
    count = sum(len(row) for row in rows)
    source = (
        "random tokens, which calibrate poorly: give --calibration a file of true ones" if tokens is None else "tokens"
    )
    return (
        replace(subject, weights=ScaledWeights(subject.weights, scales)),
        f"{len(forms)} caches are rounded, one step a channel, for the largest key or value of {count} {source}",
    )


def read_tokens(path: Path, vocab_size: int | None) -> list[Array]:
    """Rows of ids: a .npy of integers (tokens) or (rows, tokens), or text with a JSON list of ids a line.

    Raises:
        ArchcError: it is neither, has no ids, or ids beyond the vocabulary.
    """
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
            rows = list(np.atleast_2d(array))
        else:
            rows = [np.array(json.loads(line)) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ArchcError(f"{path} can't be read as token ids: {error}") from error
    rows = [row for row in rows if row.size]
    if not rows or any(row.ndim != 1 or row.dtype.kind not in "iu" for row in rows):
        raise ArchcError(
            f"{path} should hold ids: a .npy of integers (rows, tokens), or a JSON list of integers a line"
        )
    low, high = min(int(row.min()) for row in rows), max(int(row.max()) for row in rows)
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        raise ArchcError(f"{path} has ids from {low} to {high}; the vocabulary is 0 to {(vocab_size or 0) - 1}")
    return [row.astype(np.int64) for row in rows]


def _random(subject: Subject) -> list[Array]:
    shape = (_RANDOM_ROWS, min(_RANDOM_TOKENS, subject.max_model_len))
    return list(np.random.default_rng(0).integers(0, subject.graph.vocab_size or 1, shape))


def _largest(
    subject: Subject, rows: Sequence[Array], caches: Sequence[str], progress: Progress | None
) -> dict[str, Array]:
    """Cache input -> largest magnitude of each channel over all rows, float32 (1, K, 1, H)."""
    target = replace(
        subject.target,
        dtype="float32" if subject.target.dtype == "bfloat16" else subject.target.dtype,
        # On the CPU GroupQueryAttention takes float32 too, so that a window has the rows that the rounded cache will have.
        provider="cpu",
        sliding_window_cache=False,
        kv_cache_dtype="model",
        quant=None,
        # The head's logits are not read.
        prune_head="logits" in subject.graph.outputs,
    )
    found: dict[str, Array] = {}
    with tempfile.TemporaryDirectory(prefix="archc-calibrate-") as place:
        lowered = lower_parts(
            subject.graph, target=target, weights=subject.weights, max_model_len=subject.max_model_len
        )
        write_files({name: model for name, (model, _) in lowered.items()}, Path(place), progress)
        session = load_session(Path(place) / MODEL)
        encoder = load_session(Path(place) / ENCODER_FILE) if ENCODER_FILE in lowered else None
        for number, row in enumerate(rows, 1):
            if progress is not None:
                progress("(calibration)", number, len(rows))
            ids = row[None, : subject.max_model_len]
            talk = Conversation(
                session,
                batch=1,
                capacity=subject.graph.capacity(ids.shape[1]),
                encoder=encoder,
                # A decoder's keys depend little on what its encoder reads: the text itself.
                given={f"{ENCODER}input_ids": ids} if encoder is not None else None,
            )
            # No more tokens at a time than a ring has rows, so that each is seen before it is forgotten.
            step = min(talk.caches[name].shape[2] for name in caches)
            for start in range(0, ids.shape[1], step):
                talk.step(ids[:, start : start + step])
                for name in caches:
                    used = np.abs(talk.caches[name][:, :, : start + step].astype(np.float32)).max(2, keepdims=True)
                    found[name] = np.maximum(found[name], used) if name in found else used
    return found


def _steps(largest: Array, form: CacheForm) -> Array:
    """A channel that was always zero has the step of one whose largest value is 1."""
    return (np.where(largest > 0, largest, 1) / form.largest).astype(np.float32)
