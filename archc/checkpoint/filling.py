"""Weights of a graph straight out of a checkpoint folder of transformers, by the graph's names, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archc.checkpoint.importing import family_of
from archc.checkpoint.layouts import to_ours
from archc.checkpoint.opening import Checked, Model, checked
from archc.checkpoint.plan import Part
from archc.checkpoint.reading import CONFIG, has_tensors, read_config
from archc.checkpoint.staging import ORIGIN
from archc.checkpoint.tensors import DTYPES, Array, Stored, opened
from archc.graph.graph import Graph


def is_foreign(path: Path) -> bool:
    """Whether it is a folder with the configuration of a published model, rather than archc's own weights."""
    return path.is_dir() and (path / CONFIG).is_file() and not (path / ORIGIN).is_file() and has_tensors(path)


Place = int | slice | None
"""Which slice of a weight, which of its rows, or all of it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A weight, or a part of it that ``at`` says: a tensor as it is stored, or a part that was taken out of one."""

    name: str
    at: Place
    dtype: str
    shape: tuple[int, ...]
    stored: Stored
    theirs: str
    start: int = 0
    """The first of its elements in the tensor, where its bytes lie together there."""
    array: Array | None = None
    """The numbers, where they don't."""

    def read(self) -> Array:
        """The numbers."""
        return self.stored.part(self.theirs, self.start, self.shape) if self.array is None else self.array

    def read_into(self, target: memoryview) -> None:
        """Bytes that lie together, straight to where they belong."""
        self.stored.read_into(self.theirs, self.start, target)


class Foreign:
    """The open checkpoint; a weight is put together when it is asked for."""

    def __init__(self, stored: Stored, found: Checked, graph: Graph) -> None:
        self._stored = stored
        self._found = found
        self._shapes = {name: tuple(param.shape) for name, param in graph.params().items()}
        self._last: tuple[str, Array] | None = None
        self._parts: dict[str, list[tuple[Part, int]]] = {}
        for part in found.plan.parts:
            for position, ours in enumerate(part.ours):
                self._parts.setdefault(ours, []).append((part, position))

    def pieces(self) -> Iterator[Piece]:
        """What every tensor of the checkpoint holds, in an order in which each is read once."""
        for part in self._found.plan.parts:
            theirs = self._found.match.names[part.theirs]
            dtype = self._stored.dtypes[theirs]
            if part.spans is not None:
                for ours, at, shape, span in zip(part.ours, _where(part), part.shapes, part.spans, strict=True):
                    yield Piece(ours, at, dtype, shape, self._stored, theirs, span.start)
                continue
            for where, arrays in self._taken_apart(part, theirs):
                for ours, at, array in zip(part.ours, where, arrays, strict=True):
                    yield Piece(ours, at, dtype, array.shape, self._stored, theirs, array=array)

    def _taken_apart(self, part: Part, theirs: str) -> Iterator[tuple[list[Place], list[Array]]]:
        """(where in each weight, the numbers) of a tensor, or of one slice of it after the other."""
        if part.by_slices is not None:
            layout, shapes = part.by_slices
            for at in range(part.shapes[0][0]):
                yield [at] * len(part.ours), to_ours(layout, self._stored.slice(theirs, at), shapes)
            return
        yield _where(part), to_ours(part.layout, self._stored.read(theirs), part.shapes)

    def read(self, name: str) -> Array:
        """The weight in the dtype that it is stored in."""
        parts = self._parts[name]
        if parts[0][0].expert is None and parts[0][0].rows is None:
            return self._one(*parts[0])
        whole = np.empty(self._shapes[name], DTYPES[self._found.dtypes[name]])
        for part, position in parts:
            where = part.expert if part.rows is None else slice(*part.rows[position])
            whole[where] = self._one(part, position)
        return whole

    def _one(self, part: Part, position: int) -> Array:
        if part.spans is not None:
            return self._stored.part(
                self._found.match.names[part.theirs], part.spans[position].start, part.shapes[position]
            )
        if self._last is None or self._last[0] != part.theirs:
            # Of a fused tensor, the other parts are asked for next.
            self._last = part.theirs, self._stored.read(self._found.match.names[part.theirs])
        return to_ours(part.layout, self._last[1], part.shapes)[position]


def _where(part: Part) -> list[Place]:
    """Where in each weight the numbers of a part belong."""
    return [part.expert] * len(part.ours) if part.rows is None else [slice(*rows) for rows in part.rows]


@contextmanager
def foreign(path: Path, graph: Graph) -> Iterator[Foreign]:
    """The checkpoint in a folder as weights of ``graph``.

    Raises:
        ArchcError: the family is not known, or tensors and weights don't fit; all of them are listed.
    """
    config = read_config(path)
    family = family_of(config["model_type"], str(path / CONFIG))
    with opened(path) as stored:
        yield Foreign(stored, checked(stored, Model(family, config, graph)), graph)
