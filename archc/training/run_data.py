"""The data of a run: made beside it, compared with what it was begun with, and only then its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archc.errors import ArchcError
from archc.generation.text import Text
from archc.graph.graph import Graph
from archc.spec.schema import Spec
from archc.training.data.opening import folder_beside, prepare_data, put_at, read_data
from archc.training.data.tokens import Tokens
from archc.training.data.vocabulary import Vocabulary, vocabularies_of
from archc.training.objectives.choosing import data_form, evaluation_for, objective_for, split_objectives
from archc.training.objectives.objective import Objective
from archc.training.options import TrainOptions

Progress = Callable[[str, int, int], None]
Paths = str | Path | Sequence[str | Path]
TRAIN, EVAL = "train", "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """What a run was asked to learn from, and to look at. ``texts`` are those of ``texts_of``.

    A folder of it holds the shards ``train`` and ``eval``, or a file ``train.path`` that says where they lie.
    """

    spec: Spec
    graph: Graph
    options: TrainOptions
    texts: tuple[Text | None, Text | None]
    data: Paths
    eval_data: Paths | None = None
    held_out: float = 0.0
    progress: Progress | None = None

    def check(self) -> None:
        """Raises ArchcError where what is stated of evaluation has no meaning."""
        if self.eval_data is not None and self.held_out:
            raise ArchcError("held_out and eval_data both say what is only looked at; state one")
        if self.options.eval_every is not None and self.eval_data is None and not self.held_out:
            raise ArchcError(
                "eval_every: there is nothing to look at; state held_out, a share of the data, or eval_data"
            )

    def prepare(self, folder: Path, *, known: Path | None = None) -> None:
        """Make the shards in a folder, but for those that ``known`` has, and see that a model can learn from them."""
        for name, paths in self._parts().items():
            made = prepare_data(
                paths,
                vocabularies=self._vocabularies(),
                cache=folder / name,
                known=None if known is None else _place(known, name),
                form=data_form(self.graph),
                progress=self.progress,
            )
            if made != folder / name:
                (folder / f"{name}.path").write_text(os.path.abspath(made), "utf-8")
        self.objectives(folder)

    def objectives(self, folder: Path) -> tuple[Objective, Objective | None]:
        """(what is learned from, what is only looked at)."""
        spec, graph, options = self.spec, self.graph, self.options
        learned = self.tokens(folder, TRAIN)
        if self.eval_data is not None:
            held = evaluation_for(graph, spec, self.tokens(folder, EVAL), options)
            return objective_for(graph, spec, learned, options), held
        if self.held_out:
            return split_objectives(graph, spec, learned, options, held_out=self.held_out)
        return objective_for(graph, spec, learned, options), None

    def tokens(self, folder: Path, name: str = TRAIN) -> Tokens:
        """Shards that were made in a folder, or lie where it says."""
        return read_data(_place(folder, name), vocabularies=self._vocabularies())

    def identity(self, folder: Path) -> dict[str, Any]:
        """What tells this data from others."""
        return {
            "held_out": self.held_out,
            **{name: self.tokens(folder, name).digest for name in self._parts()},
        }

    def settle(self, folder: Path, home: Path) -> None:
        """Make the shards of ``folder`` those of ``home``, where it has not the same ones already."""
        if not home.exists():
            put_at(home, folder)
            return
        for name in self._parts():
            if not self._is_same(folder, home, name):
                _remove(home, name)
                for kind in (name, f"{name}.path"):
                    if (folder / kind).exists():
                        os.rename(folder / kind, home / kind)

    def _is_same(self, folder: Path, home: Path, name: str) -> bool:
        try:
            return self.tokens(home, name).digest == self.tokens(folder, name).digest
        except ArchcError:
            return False

    def _parts(self) -> dict[str, Paths]:
        given = {TRAIN: self.data, EVAL: self.eval_data}
        return {name: paths for name, paths in given.items() if paths is not None}

    def _vocabularies(self) -> tuple[Vocabulary, ...]:
        return vocabularies_of(self.spec, *self.texts)


@contextmanager
def staged(home: Path | None) -> Generator[Path]:
    """An empty folder for what will be ``home``, gone at the end unless it has become it.

    Raises:
        ArchcError: nothing can be written there.
    """
    if home is None:
        with tempfile.TemporaryDirectory(prefix="archc-data-") as folder:
            yield Path(folder)
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(folder_beside(home))
        except OSError as error:
            raise ArchcError(f"{home.parent} can't be written: {error.strerror or error}") from error
        yield folder


def _place(folder: Path, name: str) -> Path:
    elsewhere = folder / f"{name}.path"
    return Path(elsewhere.read_text("utf-8")) if elsewhere.is_file() else folder / name


def _remove(folder: Path, name: str) -> None:
    (folder / f"{name}.path").unlink(missing_ok=True)
    shutil.rmtree(folder / name, ignore_errors=True)
