"""What one key of a spec does by itself: the spec with this key changed and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from archc.errors import ArchcError, SpecError
from archc.estimation.placed import Part
from archc.planning.comparison.measures import Measure, Number, measures
from archc.planning.comparison.structure import KeyChange
from archc.planning.models import Options, open_model
from archc.spec.merge import NAMED_SECTIONS
from archc.spec.schedule import TRACKS
from archc.spec.schema import PLACED_SECTIONS


@dataclass(slots=True)
class Alone:
    """A changed key by itself: quantity -> difference to A, or why that is no model.

    The patterns of a stack and its number of layers make sense together only, so they are one change; ``paths`` has all of
    them, and ``label`` is then the section's.
    """

    label: str
    paths: tuple[str, ...]
    differences: dict[str, Number] = field(default_factory=dict[str, Number])
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "paths": list(self.paths),
            "differences": self.differences,
            **({"refused": self.refused} if self.refused else {}),
        }


class Trial:
    """A spec estimated with the keys of one change as another spec has them; ``effect`` says what that changes where."""

    def __init__(
        self, label: str, changes: Sequence[KeyChange], estimated: dict[str, Measure] | str, before: dict[str, Measure]
    ) -> None:
        self.before = before
        self.after = {} if isinstance(estimated, str) else estimated
        self.summary = Alone(
            label,
            tuple(change.path for change in changes),
            {
                name: self.after[name].total - measure.total
                for name, measure in before.items()
                if name in self.after and self.after[name].total != measure.total
            },
            estimated if isinstance(estimated, str) else "",
        )

    def effect(self, quantity: str, part: Part) -> Number:
        """The part's difference in a quantity that both have; 0 where the change does nothing or can't be tried."""
        if quantity not in self.before or quantity not in self.after:
            return 0
        return self.after[quantity].by_part.get(part, 0) - self.before[quantity].by_part.get(part, 0)


def trials(
    changes: Sequence[KeyChange],
    source: str | PathLike[str],
    overrides: Sequence[str],
    length: int,
    options: Options,
    before: dict[str, Measure],
) -> Iterator[Trial]:
    """Each change alone on ``source``, whose costs are ``before``."""
    # Nobody places them, so they cost nothing by themselves, and a pattern that names them is a pattern.
    unplaced = [_override(change) for change in changes if not change.in_a and _is_named(change)]
    for label, group in _groups(changes).items():
        if not _does_anything(group):
            continue
        try:
            model = open_model(source, [*overrides, *unplaced, *map(_override, group)])
            estimated: dict[str, Measure] | str = measures(model, length, options)
        except SpecError as error:
            problem = error.problems[0]
            estimated = ": ".join(text for text in (problem.path, problem.message) if text)
        except ArchcError as error:
            estimated = str(error)
        yield Trial(label, group, estimated, before)


def _groups(changes: Sequence[KeyChange]) -> dict[str, list[KeyChange]]:
    """Label -> keys that are changed together: a stack's schedule, and every other key for itself."""
    found: dict[str, list[KeyChange]] = {}
    for change in changes:
        section, _, key = change.path.partition(".")
        is_schedule = section in PLACED_SECTIONS and key in ("num_layers", *TRACKS)
        found.setdefault(f"{section} layers" if is_schedule else change.path, []).append(change)
    return found


def _does_anything(group: Sequence[KeyChange]) -> bool:
    """Whether a change can do anything alone: a new mixer or ffn is there in every trial, and costs where it is placed."""
    return not all(_is_named(change) and change.in_a != change.in_b for change in group)


def _is_named(change: KeyChange) -> bool:
    """Whether it is a whole mixer or ffn."""
    return change.path.count(".") == 1 and change.path.partition(".")[0] in NAMED_SECTIONS


def _override(change: KeyChange) -> str:
    """JSON is YAML; a key that is gone is null, which takes it out."""
    return f"{change.path}={json.dumps(change.b if change.in_b else None, ensure_ascii=False)}"
