"""An exported file as a conversation: onnxruntime on the CPU, caches fed back from one call to the next.

The process that checks a file imports this, so neither onnx nor onnx-ir may come with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from archc_exporters.onnx.states import (
    ENCODER_MASK,
    GENAI_INPUTS,
    LENGTHS,
    PAST,
    PRESENT,
    ROLLING,
    present_name,
    tokens_a_row,
)

Array = np.ndarray[Any, Any]
_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}


def load_session(path: Path, *, threads: int = 0) -> ort.InferenceSession:
    """The file on the CPU provider; 0 threads lets onnxruntime choose."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_whole(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of a file that sees its tokens at once, by name. Left out, a mask is ones and other ids are zeros."""
    given = dict(feeds)
    ids = next((value for name, value in given.items() if name.endswith("input_ids")), None)
    for missing in (each.name for each in session.get_inputs() if each.name not in given):
        assert ids is not None, f"{missing} must be given"
        given[missing] = (np.ones if missing.endswith("attention_mask") else np.zeros)(ids.shape, np.int64)
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, (np.asarray(value) for value in session.run(outputs, given)), strict=True))


class Conversation:
    """Rows of ``batch`` sequences in caches of ``capacity`` rows, all empty at first.

    ``given`` are inputs that stay as they are from call to call: ``prefix_length`` (batch,), zeros where left out; with
    ``encoder``, the session of its file, ``encoder_input_ids`` (batch, source) and their mask, which it reads at once.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        *,
        batch: int,
        capacity: int,
        encoder: ort.InferenceSession | None = None,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        self._session = session
        about = json.loads(session.get_modelmeta().custom_metadata_map.get("archc", "{}"))
        self._batched_chunks: bool = about.get("batched_chunks", True)
        self.lengths: Array = np.zeros(batch, np.int64)
        sizes: Mapping[str, int] = {"batch": batch, "capacity": capacity}
        outputs = {output.name for output in session.get_outputs()}
        inputs = [each.name for each in session.get_inputs()]
        self._still = {name: value for name, value in (given or {}).items() if name in inputs}
        if encoder is not None:
            self._still |= _read(encoder, given or {})
        elif lacking := [name for name in inputs if name.startswith(PAST) and present_name(name) not in outputs]:
            raise ValueError(f"{lacking[0]} comes of the encoder's file, and there is no session of that")
        if "prefix_length" in inputs:
            self._still.setdefault("prefix_length", np.zeros(batch, np.int64))
        self.caches: dict[str, Array] = {
            given.name: np.zeros(
                tuple(dim if isinstance(dim, int) else sizes.get(dim) or _rows(dim, capacity) for dim in given.shape),
                _NUMPY[given.type],
            )
            for given in session.get_inputs()
            if given.name.startswith(PAST) and present_name(given.name) in outputs
        }
        self._is_genai = any(name in GENAI_INPUTS and name not in LENGTHS for name in inputs)
        known = (*LENGTHS, *GENAI_INPUTS, *self.caches, *self._still)
        self._further = [name for name in inputs if name not in known]
        self._outputs = [session.get_outputs()[0].name, *(present_name(name) for name in self.caches)]

    def step(self, input_ids: Array, valid: Array | None = None, **further: Array) -> Array:
        """Logits (batch, seq, vocab_size) of new tokens (batch, seq), of which ``valid`` (batch,) a row are no padding.

        ``further`` are the file's other inputs of ids, (batch, seq), zeros where left out.
        """
        batch, seq = input_ids.shape
        if batch > 1 and seq > 1 and self.lengths.any() and not self._batched_chunks:
            return self._row_by_row(input_ids, valid, further)
        new = np.full(batch, seq, np.int64) if valid is None else np.asarray(valid, np.int64)
        feeds = {"input_ids": np.asarray(input_ids, np.int64), **self._lengths(seq, new)}
        feeds.update({name: further.get(name, np.zeros((batch, seq), np.int64)) for name in self._further})
        result = [
            np.asarray(value) for value in self._session.run(self._outputs, {**feeds, **self.caches, **self._still})
        ]
        self.caches = dict(zip(self.caches, result[1:], strict=True))
        self.lengths = self.lengths + new
        return result[0]

    def _lengths(self, seq: int, new: Array) -> dict[str, Array]:
        """What tells the file how many tokens each row holds and gets, in archc's convention or onnxruntime-genai's."""
        kv_length = self.lengths + seq
        if self._is_genai:
            held = np.arange(kv_length.max()) < (self.lengths + new)[:, None]
            return {"attention_mask": held.astype(np.int64), "position_ids": self.lengths[:, None] + np.arange(seq)}
        return {
            "past_length": self.lengths,
            "seq_length": new,
            "kv_length": kv_length,
            "max_length": kv_length.max(keepdims=True),
        }

    def _row_by_row(self, input_ids: Array, valid: Array | None, further: Mapping[str, Array]) -> Array:
        """A chunk over a past for files whose GroupQueryAttention takes one sequence of those at a time."""
        lengths, caches, still = self.lengths, self.caches, self._still
        logits: list[Array] = []
        held: list[dict[str, Array]] = []
        for row in range(len(input_ids)):
            at = slice(row, row + 1)
            self.lengths = lengths[at]
            self.caches = {name: cache[at] for name, cache in caches.items()}
            self._still = {name: value[at] for name, value in still.items()}
            given = {name: value[at] for name, value in further.items()}
            logits.append(self.step(input_ids[at], None if valid is None else valid[at], **given))
            held.append(self.caches)
        self.lengths = lengths + (input_ids.shape[1] if valid is None else np.asarray(valid, np.int64))
        self.caches = {name: np.concatenate([row[name] for row in held]) for name in caches}
        self._still = still
        return np.concatenate(logits)


def _read(encoder: ort.InferenceSession, given: Mapping[str, Array]) -> dict[str, Array]:
    """What a decoder reads of a text: the keys and values that the encoder makes of it, and its mask."""
    names = [each.name for each in encoder.get_inputs()]
    kept = run_whole(encoder, {name: value for name, value in given.items() if name in names})
    found = {PAST + name.removeprefix(PRESENT): value for name, value in kept.items()}
    if ENCODER_MASK in names:
        ids = given["encoder_input_ids"]
        found[ENCODER_MASK] = given.get(ENCODER_MASK, np.ones(ids.shape, np.int64))
    return found


def _rows(dim: str, capacity: int) -> int:
    """Rows of a cache that has one every few tokens; those of a rolling one: as many as the others, and at least the window's."""
    if (tokens := tokens_a_row(dim)) is not None:
        return -(-capacity // tokens)
    return max(capacity, int(dim.removeprefix(ROLLING)))
