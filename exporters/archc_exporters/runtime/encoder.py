"""Files that see all their tokens in one call: ``archc.load(DIR).forward(...)``, and what a decoder reads of its encoder."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from archc.errors import ArchcError
from archc.generation.text import Text
from archc_exporters.runtime.buffers import Array, Block, View, numpy_dtype
from archc_exporters.runtime.folder import ENCODER_MASK, Contract, Tensor
from archc_exporters.runtime.provider import Provider, first_line

_FUSED_MULTIPLE: dict[Provider, int] = {"cpu": 1, "cuda": 8}
"""Tokens are padded to a multiple of it: CUDA's kernels under a mask want as many."""


class Encoder:
    """A folder's encoder on one provider. ``contract`` says what it is, ``provider`` where it runs."""

    def __init__(
        self, folder: Path, contract: Contract, session: ort.InferenceSession, provider: Provider, text: Text | None
    ) -> None:
        self.folder, self.contract, self.text = folder, contract, text
        self.session = session
        self.provider: Provider = provider

    @property
    def reads_ids(self) -> bool:
        """Whether it reads ids, and no pictures."""
        return self.contract.inputs[0].dtype == "int64"

    def forward(self, inputs: Any, attention_mask: Any = None, **further: Any) -> dict[str, Array]:
        """All outputs by name, ``hidden_states`` (batch, seq, width), ``logits`` or ``pooler_output`` (batch, width).

        ``inputs`` are ids: (batch, seq) with the mask, 1 for tokens and 0 for padding on whatever side; or rows of any
        length, which are padded on the right here; or texts, where the folder has a tokenizer; or pixels (batch,
        channels, height, width). ``further`` are the file's other inputs, ``token_type_ids`` (batch, seq), by default zeros.

        Raises:
            ArchcError: they are no such inputs, hold ids that the model has not, or are longer than the file was made for.
        """
        if not self.reads_ids:
            return self._run({self.contract.inputs[0].name: self._pixels(inputs)}, None)
        ids, mask = self.batch(inputs, attention_mask)
        seq = ids.shape[1]
        wide = -(-seq // _FUSED_MULTIPLE[self.provider]) * _FUSED_MULTIPLE[self.provider]
        feeds = {"input_ids": _padded(ids, wide), "attention_mask": _padded(mask, wide)}
        for given in self.contract.inputs:
            if given.name not in feeds:
                value = np.asarray(further.pop(given.name, np.zeros_like(ids)), np.int64)
                if value.shape != ids.shape:
                    raise ArchcError(
                        f"{given.name} should be {list(ids.shape)}, as the ids are (found {list(value.shape)})"
                    )
                feeds[given.name] = _padded(value, wide)
        if further:
            known = ", ".join(given.name for given in self.contract.inputs)
            raise ArchcError(f"{', '.join(further)}: this file has no such input; it has {known}")
        feeds = {
            name: value for name, value in feeds.items() if any(name == each.name for each in self.contract.inputs)
        }
        return self._run(feeds, seq)

    def batch(self, inputs: Any, attention_mask: Any = None) -> tuple[Array, Array]:
        """Ids (batch, seq) and their mask, of whatever ``forward`` takes for ids.

        Raises:
            ArchcError: they are none, or not this model's.
        """
        rows = [inputs] if isinstance(inputs, str) else list(inputs)
        if rows and isinstance(rows[0], int | np.integer):
            rows = [rows]
        if any(isinstance(row, str) for row in rows):
            if self.text is None:
                hint = "archc export --tokenizer FILE puts one there"
                raise ArchcError(f"{self.folder} has no tokenizer, so inputs are ids; {hint}")
            rows = [self.text.encode(row) if isinstance(row, str) else row for row in rows]
        lengths = [len(row) for row in rows]
        if not rows or min(lengths) < 1:
            raise ArchcError("there is nothing to read: give at least one row of at least one token")
        limit = self.contract.max_model_len
        if max(lengths) > limit:
            raise ArchcError(
                f"{max(lengths):,} tokens are more than the {limit:,} that the file was made for; shorten the text, or export "
                "with a larger --max-model-len"
            )
        ids, mask = np.zeros((len(rows), max(lengths)), np.int64), np.zeros((len(rows), max(lengths)), np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)], mask[number, : len(row)] = np.asarray(row), 1
        if attention_mask is not None:
            mask = np.asarray(attention_mask, np.int64)
            if mask.shape != ids.shape:
                raise ArchcError(
                    f"attention_mask should be {list(ids.shape)}, as the ids are (found {list(mask.shape)})"
                )
        size = self.contract.vocab_size
        if size is not None and not ((ids >= 0) & (ids < size)).all():
            wrong = int(ids[(ids < 0) | (ids >= size)][0])
            raise ArchcError(f"the id {wrong} is none of this model's, which are 0 to {size - 1}")
        return ids, mask

    def _pixels(self, inputs: Any) -> Array:
        given = self.contract.inputs[0]
        pixels = np.asarray(inputs, numpy_dtype(given.dtype))
        shape = tuple(given.shape[1:])
        pixels = pixels[None] if pixels.shape == shape else pixels
        if pixels.shape[1:] != shape or not len(pixels):
            wanted = ", ".join(map(str, given.shape))
            raise ArchcError(f"{given.name} should be ({wanted}) (found {list(pixels.shape)})")
        return pixels

    def _run(self, feeds: dict[str, Array], seq: int | None) -> dict[str, Array]:
        first = next(iter(feeds.values()))
        sizes = {"batch": first.shape[0], "seq": first.shape[1]}
        binding = self.session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        views = {output.name: self._view(output, sizes) for output in self.contract.outputs}
        for name, view in views.items():
            binding.bind_ortvalue_output(name, view.value)
        _run(self.session, binding, f"a pass over {tuple(first.shape)}")
        outputs = {output.name: views[output.name].numpy() for output in self.contract.outputs}
        counted = {output.name for output in self.contract.outputs if output.shape[1:2] == ("seq",)}
        return {name: value[:, :seq] if name in counted else value for name, value in outputs.items()}

    def _view(self, output: Tensor, sizes: dict[str, int]) -> View:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in output.shape)
        block = Block(prod(shape) * numpy_dtype(output.dtype).itemsize, self.provider)
        return View(self.session, block, output.dtype, shape)


def read_source(
    session: ort.InferenceSession, contract: Contract, rows: Sequence[Sequence[int]], provider: Provider
) -> dict[str, ort.OrtValue]:
    """What a decoder reads of the texts: keys and values of every layer, left where the encoder made them, and their mask.

    Raises:
        ArchcError: the encoder reads no ids, or onnxruntime failed.
    """
    assert contract.encoder is not None
    names = {given.name for given in contract.encoder.inputs}
    if "encoder_input_ids" not in names:
        raise ArchcError(f"the encoder reads {', '.join(sorted(names))} and no text, so there is no prompt to answer")
    multiple = _FUSED_MULTIPLE[provider]
    wide = -(-max(map(len, rows)) // multiple) * multiple
    ids, mask = np.zeros((len(rows), wide), np.int64), np.zeros((len(rows), wide), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = np.asarray(row), 1
    feeds = {"encoder_input_ids": ids, ENCODER_MASK: mask}
    binding = session.io_binding()
    for name in names:
        binding.bind_cpu_input(name, feeds.get(name, np.zeros_like(ids)))
    outputs = {cache.output: cache.input for cache in contract.caches if cache.growth == "source"}
    for name in outputs:
        binding.bind_output(name, provider, 0)
    _run(session, binding, f"the encoder over {ids.shape} tokens")
    found = dict(zip(outputs.values(), binding.get_outputs(), strict=True))
    if any(given.name == ENCODER_MASK for given in contract.inputs):
        found[ENCODER_MASK] = still_value(mask, provider)
    return found


def still_value(array: Array, provider: Provider) -> ort.OrtValue:
    """Integers on the device, where every call reads them."""
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array, np.int64), provider, 0)


def _run(session: ort.InferenceSession, binding: ort.IOBinding, what: str) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # onnxruntime raises a family of its own, based on Exception itself.
        raise ArchcError(f"onnxruntime {ort.__version__} failed in {what}: {first_line(error)}") from error


def _padded(array: Array, width: int) -> Array:
    """(batch, seq) with zeros up to a width."""
    return np.pad(array, ((0, 0), (0, width - array.shape[1])))
