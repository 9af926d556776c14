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
from archc.checkpoint.rules import SAME
from archc.checkpoint.staging import ORIGIN
from archc.checkpoint.tensors import DTYPES, Array, Stored, opened
from archc.graph.graph import Graph


def is_foreign(path: Path) -> bool:
    """Whether it is a folder with the configuration of a published model, rather than archc's own weights."""
    return path.is_dir() and (path / CONFIG).is_file() and not (path / ORIGIN).is_file() and has_tensors(path)


@dataclass(frozen=True, slots=True)
class Piece:
    """A weight, or one slice of it: a tensor as it is stored, or a part that was taken out of one."""

    name: str
    slice_at: int | None
    dtype: str
    stored: Stored
    theirs: str
    array: Array | None = None

    def read(self) -> Array:
        """The numbers."""
        return self.stored.read(self.theirs) if self.array is None else self.array

    def read_into(self, target: memoryview) -> None:
        """The bytes of a tensor that was not taken apart, straight to where they belong."""
        self.stored.read_into(self.theirs, target)


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
            if part.layout == SAME and len(part.ours) == 1:
                yield Piece(part.ours[0], part.expert, self._stored.dtypes[theirs], self._stored, theirs)
                continue
            arrays = to_ours(part.layout, self._stored.read(theirs), part.shapes)
            for ours, array in zip(part.ours, arrays, strict=True):
                yield Piece(ours, part.expert, self._stored.dtypes[theirs], self._stored, theirs, array)

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
        if self._last is None or self._last[0] != part.theirs:
            # Of a fused tensor, the other parts are asked for next.
            self._last = part.theirs, self._stored.read(self._found.match.names[part.theirs])
        return to_ours(part.layout, self._last[1], part.shapes)[position]


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
