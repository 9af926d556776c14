"""Activations: the bytes that autograd keeps from a training forward until its backward, read off the graph.

Each op replays its torch lowering on a tape (``Op.saves``). A body that layers share is replayed once. Inputs are what training
gives: tokens without padding, no cache, no loss. Weights and buffers are not activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from archc.graph.graph import LAYER, Graph, join, resolve_dtype
from archc.ir.size import Dim, evaluate, simplify
from archc.ir.tape import Device, Held, Recompute, Storage, Tape
from archc.ir.values import Body, Call, Node, Param, Value

SHARED = "shared by layers"
OUTSIDE = "outside layers"


@dataclass(slots=True, frozen=True)
class Piece:
    """Kept tensors of one op: of ``count`` layers called ``layer`` each, ``bytes`` together. ``axis`` is what cuts them."""

    layer: str
    origin: str
    axis: str | None
    count: int
    bytes: Dim


@dataclass(slots=True, eq=False, repr=False)
class Activations:
    """What is kept at one batch and length, by ``layer`` kind, and which ops could not say (path, op), left out."""

    recompute: Recompute
    sizes: dict[str, int]
    pieces: list[Piece] = field(default_factory=list[Piece])
    left_out: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    @property
    def formula(self) -> Dim:
        """Bytes in ``batch``, ``seq`` and ``source``, as long as no lowering would choose another form."""
        total: Dim = 0
        for piece in self.pieces:
            total = total + piece.bytes
        return simplify(total)

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.value(piece) for piece in self.pieces)

    def value(self, piece: Piece) -> int:
        """Bytes of a piece, all its layers together."""
        return evaluate(piece.bytes, self.sizes)

    def by_layer(self) -> dict[str, int]:
        """Bytes by layer kind; what no layer makes has names of its own."""
        found: dict[str, int] = {}
        for piece in self.pieces:
            found[piece.layer] = found.get(piece.layer, 0) + self.value(piece)
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data, numbers in bytes."""
        return {
            "recompute": self.recompute,
            "bytes": self.bytes,
            "by_layer": self.by_layer(),
            "formula": str(self.formula),
            "left_out": [{"path": path, "op": name} for path, name in self.left_out],
        }


def measure_activations(
    graph: Graph,
    *,
    batch_size: int,
    seq_len: int,
    source_len: int | None = None,
    dtype: str | None = None,
    recompute: Recompute = "none",
    device: Device = "cuda",
    is_trunk: bool = False,
) -> Activations:
    """What autograd keeps of one forward over (batch_size, seq_len) tokens whose weights and activations are in ``dtype``.

    ``device`` is whose kernels run. What is not part of a layer is never recomputed. ``is_trunk``: what stands behind the last
    layer is left out, as where a loss runs it.
    """
    source = seq_len if source_len is None else source_len
    sizes = {"batch": batch_size, "seq": seq_len, "past": 0, "source": source, "memory": source}
    tape = Tape(dtype or graph.dtype, sizes, device)
    replay = _Replay(tape, recompute)
    replay.root(graph, is_trunk=is_trunk)
    return Activations(recompute, sizes, replay.pieces(), replay.left_out)


def trunk_and_tail(graph: Graph) -> tuple[list[Node | Call], list[Node | Call]]:
    """What the root runs up to its last layer, and what behind it; without layers all of it is behind."""
    items = list(graph.root.items)
    end = max((place for place, item in enumerate(items, 1) if LAYER.match(item.name)), default=0)
    return items[:end], items[end:]


@dataclass(slots=True, eq=False)
class _Replayed:
    """One body on a tape of its own: what it keeps, and how its outputs relate to its inputs."""

    inputs: list[Storage]
    outputs: list[Held]
    saved: dict[Storage, None]
    products: dict[Storage, None]
    shared: dict[Any, Storage]
    left_out: list[tuple[str, str]]


@dataclass(slots=True, eq=False)
class _Done:
    """An op that was replayed: what it made, what it read on the way to a gradient, and what it keeps."""

    outputs: Sequence[Held]
    read: Sequence[Held]
    saved: dict[Storage, None]


@dataclass(slots=True, eq=False)
class _Notes:
    """What is noted while a body is replayed."""

    done: list[_Done] = field(default_factory=list[_Done])
    left_out: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def saved(self, outputs: Sequence[Held]) -> dict[Storage, None]:
        """What stays of all that is kept: autograd lets go of what no output depends on."""
        needed = {id(held) for held in outputs}
        kept: list[_Done] = []
        for op in reversed(self.done):
            if any(id(held) in needed for held in op.outputs):
                needed.update(id(held) for held in op.read)
                kept.append(op)
        return {storage: None for op in reversed(kept) for storage in op.saved}


class _Replay:
    """Walks the root; calls are replayed once for each body and kind of inputs."""

    def __init__(self, tape: Tape, recompute: Recompute) -> None:
        self.tape, self.recompute = tape, recompute
        self.weights: dict[Param, Held] = {}
        self.known: dict[tuple[object, ...], _Replayed] = {}
        self.kept: dict[Storage, tuple[str, int]] = {}
        self.left_out: list[tuple[str, str]] = []

    def root(self, graph: Graph, *, is_trunk: bool) -> None:
        """Replay the whole model, or all up to its last layer."""
        env = {value: self._input(graph, name, value) for name, value in graph.inputs.items()}
        for item in trunk_and_tail(graph)[0] if is_trunk else graph.root.items:
            inputs = [env[value] for value in item.inputs]
            if isinstance(item, Node):
                notes = _Notes(left_out=self.left_out)
                outputs = self._node(self.tape, item, inputs, "", notes)
                self._keep(notes.saved(outputs), OUTSIDE)
            else:
                layer = LAYER.match(item.name) is not None
                outputs = self._call(item, inputs, item.body.label if layer else OUTSIDE, is_layer=layer)
            for value, held in zip(item.outputs, outputs, strict=True):
                env[value] = held

    def pieces(self) -> list[Piece]:
        """What is kept, summed over equal layers."""
        sums: dict[tuple[str, str, str | None], tuple[int, Dim]] = {}
        for storage, (layer, times) in self.kept.items():
            if storage.is_weight:
                continue
            key = (layer, storage.origin, storage.axis)
            count, total = sums.get(key, (0, 0))
            sums[key] = (count + times, total + storage.bytes * times)
        return [Piece(layer, origin, axis, count, total) for (layer, origin, axis), (count, total) in sums.items()]

    def _keep(self, storages: dict[Storage, None], layer: str) -> None:
        for storage in storages:
            self.kept.setdefault(storage, (layer, 1))

    def _input(self, graph: Graph, name: str, value: Value) -> Held:
        shape = value.shape
        if name.endswith("positions"):
            # Without padding all rows have the same positions, and torch makes one row.
            shape = (1, *shape[1:])
        # A mask of padding is not given where there is none.
        absent = name.endswith("attention_mask")
        return self.tape.new(shape, resolve_dtype(value.dtype, self.tape.model_dtype), is_weight=absent)

    def _node(self, tape: Tape, node: Node, given: Sequence[Held], path: str, notes: _Notes) -> Sequence[Held]:
        tape.origin, tape.saved = join(path, node.name) or node.op.op_name, {}
        inputs = [_again(held, held.storage) for held in given]
        weights = {role: self._weight(param) for role, param in node.params.items()}
        found = node.op.saves(tape, inputs, weights)
        if found is None:
            notes.left_out.append((tape.origin, node.op.op_name))
            outputs = [
                tape.new(value.shape, value.dtype, needs_grad=not value.dtype.startswith(("int", "bool")))
                for value in node.outputs
            ]
        else:
            outputs = [found] if isinstance(found, Held) else list(found)
        assert len(outputs) == len(node.outputs), f"{tape.origin}: saves gives {len(outputs)} outputs"
        for held, value in zip(outputs, node.outputs, strict=True):
            held.axis = value.axis
            if held.storage.axis is None:
                held.storage.axis = value.axis
        read = [
            outer
            for outer, inner in zip(given, inputs, strict=True)
            if found is None or inner.is_read or any(inner is held for held in outputs)
        ]
        notes.done.append(_Done(outputs, read, tape.saved))
        return outputs

    def _weight(self, param: Param) -> Held:
        if param not in self.weights:
            self.weights[param] = self.tape.new(param.shape, param.dtype, needs_grad=param.trainable, is_weight=True)
        return self.weights[param]

    def _call(self, call: Call, inputs: Sequence[Held], layer: str, *, is_layer: bool) -> list[Held]:
        """Replay a scope of the root: storages that only it sees are kept as many times as it is entered."""
        done = self._body(call.body, inputs)
        outer = {inner: held.storage for inner, held in zip(done.inputs, inputs, strict=True)}
        for key, storage in done.shared.items():
            outer[storage] = self.tape.shared.setdefault(key, storage)
        for held in done.outputs:
            inner = held.storage
            if inner not in outer:
                outer[inner] = Storage(
                    inner.elements, inner.dtype, axis=inner.axis, origin=inner.origin, is_weight=inner.is_weight
                )
        if not is_layer or self.recompute == "none":
            kept: dict[Storage, None] = done.saved
        else:
            kept = dict.fromkeys(done.inputs)
            if self.recompute == "selective":
                kept |= done.products
        shared = set(done.shared.values())
        for storage in kept:
            if storage in outer:
                self.kept.setdefault(outer[storage], (SHARED if storage in shared else layer, 1))
            else:
                name, count = self.kept.get(storage, (layer, 0))
                self.kept[storage] = (name, count + 1)
        self.left_out += [(join(call.name, path), name) for path, name in done.left_out]
        return [_again(held, outer[held.storage]) for held in done.outputs]

    def _body(self, body: Body, inputs: Sequence[Held]) -> _Replayed:
        storages: dict[Storage, int] = {}
        kinds = tuple(
            (held.shape, held.dtype, held.needs_grad, storages.setdefault(held.storage, len(storages)))
            for held in inputs
        )
        key = (body, kinds)
        if key not in self.known:
            inner = {
                storage: Storage(storage.elements, storage.dtype, axis=storage.axis, is_weight=storage.is_weight)
                for storage in storages
            }
            tape = Tape(self.tape.model_dtype, self.tape.sizes, self.tape.device)
            notes = _Notes()
            given = [_again(held, inner[held.storage]) for held in inputs]
            outputs = self._items(tape, body, given, "", notes)
            self.known[key] = _Replayed(
                [held.storage for held in given],
                outputs,
                notes.saved(outputs),
                tape.products,
                tape.shared,
                notes.left_out,
            )
        return self.known[key]

    def _items(self, tape: Tape, body: Body, inputs: Sequence[Held], path: str, notes: _Notes) -> list[Held]:
        """Replay a body and all scopes below on one tape."""
        env = dict(zip(body.inputs, inputs, strict=True))
        for item in body.items:
            given = [env[value] for value in item.inputs]
            if isinstance(item, Node):
                outputs = self._node(tape, item, given, path, notes)
            else:
                outputs = self._items(tape, item.body, given, join(path, item.name), notes)
            for value, held in zip(item.outputs, outputs, strict=True):
                env[value] = held
        return [env[value] for value in body.outputs]


def _again(held: Held, storage: Storage) -> Held:
    """The same tensor in a storage, not read yet."""
    return Held(held.shape, held.dtype, storage, needs_grad=held.needs_grad, axis=held.axis)
