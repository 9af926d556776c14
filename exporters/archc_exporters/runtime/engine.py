"""One batch of sequences on a session: caches that lie still while the model reads and writes them, call after call.

Past and present of a cache are one buffer wherever the file allows it. Where a node may read the past after the present is
written (``in_place`` is false), two buffers take turns. So nothing that grows with the context is copied between calls, and
no buffer is made after the first call but one for logits of a longer chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnxruntime as ort

from archc.errors import ArchcError
from archc_exporters.runtime.buffers import Array, Block, View, numpy_dtype
from archc_exporters.runtime.folder import PREFIX_LENGTH, Cache, Contract
from archc_exporters.runtime.provider import Provider, first_line


class Engine:
    """``batch`` sequences in caches of ``capacity`` rows, all empty at first.

    ``lengths`` (batch,) are the tokens that each row holds. What stays as it is while a text is written, ``give`` gives.
    """

    def __init__(
        self, session: ort.InferenceSession, contract: Contract, *, batch: int, capacity: int, device: Provider = "cpu"
    ) -> None:
        self._session, self.contract = session, contract
        self.batch, self.capacity = batch, capacity
        self.lengths: Array = np.zeros(batch, np.int64)
        self._kept = [
            _Kept(session, cache, batch=batch, capacity=capacity, device=device)
            for cache in contract.caches
            if cache.growth != "source"
        ]
        # Calls until buffers lie as they did: two where some take turns. Each has a binding, which is made when it is first met.
        self._period = max((len(kept.blocks) for kept in self._kept), default=1)
        self._turn = 0
        self._bindings: dict[int, ort.IOBinding] = {}
        self._still: dict[str, ort.OrtValue] = {}
        if any(given.name == PREFIX_LENGTH for given in contract.inputs):
            self.give({PREFIX_LENGTH: ort.OrtValue.ortvalue_from_numpy(np.zeros(batch, np.int64), device, 0)})
        self._logits = _Logits(session, contract, device)
        self._zeros: dict[tuple[int, ...], Array] = {}

    def give(self, values: Mapping[str, ort.OrtValue]) -> None:
        """Inputs of every call from now on: an encoder's keys and values and the mask of its tokens, a prefix's length."""
        self._still.update(values)
        self._bindings.clear()

    @property
    def cache_bytes(self) -> int:
        """Bytes of the buffers, second ones included, and of what an encoder has given."""
        own = sum(block.count_bytes for kept in self._kept for block in kept.blocks)
        sources = {cache.input for cache in self.contract.caches if cache.growth == "source"}
        return own + sum(value.tensor_size_in_bytes() for name, value in self._still.items() if name in sources)

    def caches(self) -> dict[str, View]:
        """Input's name -> what the next call will read."""
        return {kept.cache.input: kept.past(self._turn) for kept in self._kept}

    def step(self, input_ids: Array, valid: Array | None = None, *, wanted: bool = True) -> Array | None:
        """Feed new tokens (batch, seq), of which ``valid`` (batch,) a row are no padding.

        Returns the logits of each row's last valid token, (batch, vocab_size), good until the next call; None unless
        ``wanted``. A row without valid tokens has logits that mean nothing.

        Raises:
            ArchcError: onnxruntime failed, for want of memory for example.
        """
        logits = self._run(self._bound(wanted=wanted), input_ids, self.lengths, valid, wanted)
        self._turn = (self._turn + 1) % self._period
        self.lengths += input_ids.shape[1] if valid is None else valid
        return logits

    def _bound(self, *, wanted: bool) -> ort.IOBinding:
        """A binding of all caches as this turn finds them."""
        if wanted and self._turn in self._bindings:
            return self._bindings[self._turn]
        binding = self._session.io_binding()
        for kept in self._kept:
            kept.bind(binding, self._turn)
        for name, value in self._still.items():
            binding.bind_ortvalue_input(name, value)
        # Outputs stay bound from call to call, so that where logits are not wanted the binding is another.
        if wanted:
            self._bindings[self._turn] = binding
        return binding

    def step_row(self, row: int, input_ids: Array, *, wanted: bool = True) -> Array | None:
        """Feed new tokens (1, seq) to one row and leave the others alone. Logits are (1, vocab_size)."""
        # Files with such inputs take chunks of all rows at once.
        assert not self._still, "what belongs to all rows is not cut into them"
        binding = self._session.io_binding()
        pairs = [kept.bind_row(binding, self._turn, row) for kept in self._kept]
        logits = self._run(binding, input_ids, self.lengths[row : row + 1], None, wanted)
        for past, present in pairs:
            if past is not present:
                past.take(present)
        self.lengths[row] += input_ids.shape[1]
        return logits

    def _run(
        self, binding: ort.IOBinding, input_ids: Array, lengths: Array, valid: Array | None, wanted: bool
    ) -> Array | None:
        for name, value in self._inputs(input_ids, lengths, valid).items():
            binding.bind_cpu_input(name, value)
        rows, seq = input_ids.shape
        if wanted:
            self._logits.bind(binding, rows, seq)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime raises a family of its own, based on Exception itself.
            what = f"a step of ({rows}, {seq}) tokens over caches of {self.capacity:,} rows"
            raise ArchcError(f"onnxruntime {ort.__version__} failed in {what}: {first_line(error)}") from error
        return self._logits.last(rows, seq, valid) if wanted else None

    def _inputs(self, input_ids: Array, lengths: Array, valid: Array | None) -> Mapping[str, Array]:
        rows, seq = input_ids.shape
        kv_length = lengths + seq
        inputs: dict[str, Array] = {
            "input_ids": np.ascontiguousarray(input_ids, np.int64),
            "past_length": lengths.copy(),
            "seq_length": np.full(rows, seq, np.int64) if valid is None else np.ascontiguousarray(valid, np.int64),
            "kv_length": kv_length,
            "max_length": kv_length.max(keepdims=True),
        }
        for name in self.contract.further_inputs():
            inputs[name] = self._zeros.setdefault((rows, seq), np.zeros((rows, seq), np.int64))
        return inputs


class _Kept:
    """One cache: a buffer, or two that take turns."""

    def __init__(
        self, session: ort.InferenceSession, cache: Cache, *, batch: int, capacity: int, device: Provider
    ) -> None:
        self.cache, self._session = cache, session
        shape = cache.allocated(batch=batch, capacity=capacity)
        row_bytes = prod(shape[1:]) * numpy_dtype(cache.dtype).itemsize
        self.blocks = [Block(batch * row_bytes, device) for _ in range(1 if cache.in_place else 2)]
        self._views = [View(session, block, cache.dtype, shape) for block in self.blocks]
        self._row_shape, self._row_bytes = (1, *shape[1:]), row_bytes

    def past(self, turn: int) -> View:
        return self._views[turn % len(self._views)]

    def present(self, turn: int) -> View:
        return self.past(turn + 1)

    def bind(self, binding: ort.IOBinding, turn: int) -> None:
        binding.bind_ortvalue_input(self.cache.input, self.past(turn).value)
        binding.bind_ortvalue_output(self.cache.output, self.present(turn).value)

    def bind_row(self, binding: ort.IOBinding, turn: int, row: int) -> tuple[View, View]:
        """Bind one row as a batch of one. Returns its past and its present, which are one where the cache is in place."""
        past = self._row(turn, row)
        present = past if self.cache.in_place else self._row(turn + 1, row)
        binding.bind_ortvalue_input(self.cache.input, past.value)
        binding.bind_ortvalue_output(self.cache.output, present.value)
        return past, present

    def _row(self, turn: int, row: int) -> View:
        block = self.blocks[turn % len(self.blocks)]
        return View(self._session, block, self.cache.dtype, self._row_shape, row * self._row_bytes)


class _Logits:
    """Where logits are written, and how a row of them is read."""

    def __init__(self, session: ort.InferenceSession, contract: Contract, device: Provider) -> None:
        output = contract.outputs[0]
        self._session = session
        self._device: Provider = device
        self._name, self._dtype, self._pruned = output.name, output.dtype, output.shape[1] == 1
        self._width, self._itemsize = int(output.shape[2]), numpy_dtype(output.dtype).itemsize
        self._block = Block(0, device)
        self._views: dict[tuple[int, int], View] = {}

    def bind(self, binding: ort.IOBinding, rows: int, seq: int) -> None:
        binding.bind_ortvalue_output(self._name, self._view(rows, seq).value)

    def last(self, rows: int, seq: int, valid: Array | None) -> Array:
        """Of each row's last valid token, (rows, width)."""
        if self._pruned or seq == 1:
            return self._view(rows, seq).numpy()[:, 0]
        at = np.full(rows, seq - 1) if valid is None else np.maximum(np.asarray(valid) - 1, 0)
        if self._device == "cpu":
            return self._view(rows, seq).numpy()[np.arange(rows), at]
        # One line of a row is copied to the host, not a whole chunk of them.
        size = self._width * self._itemsize
        lines = [
            View(self._session, self._block, self._dtype, (1, self._width), (row * seq + int(column)) * size).numpy()
            for row, column in enumerate(at)
        ]
        return np.concatenate(lines)

    def _view(self, rows: int, seq: int) -> View:
        columns = 1 if self._pruned else seq
        found = self._views.get((rows, columns))
        if found is None:
            needed = rows * columns * self._width * self._itemsize
            if needed > self._block.count_bytes:
                self._block = Block(needed, self._device)
                self._views.clear()
            found = View(self._session, self._block, self._dtype, (rows, columns, self._width))
            self._views[rows, columns] = found
        return found
