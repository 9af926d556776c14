"""Which tensors of a checkpoint are which weights of archc, in both directions, said in data.

A name is a template: ``{i}`` is a layer, counted from 0, ``{e}`` an expert. A rule with ``{e}`` in ``theirs`` stacks: one
tensor an expert there, one with a leading dimension of experts here.
"""

from __future__ import annotations

from dataclasses import dataclass

ALTERNATE = 0
"""``groups`` of as many groups as a part has rows: the parts' rows take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a tensor there holds one weight here, or several as parts.

    Attributes:
        groups: None for parts one behind the other along their rows; n for n groups of rows, in each a share of every part.
        axis: which dimension of a weight here is its rows; 1 for stacks of experts.
        transposed: the tensor there is stored inputs x outputs.
        view: shape there, for the same numbers in the same order; -1 for the rest.
        row_multiple: rows there are a multiple of it, zeros behind those of the weight; for one weight without groups and view.
    """

    groups: int | None = None
    axis: int = 0
    transposed: bool = False
    view: tuple[int, ...] | None = None
    row_multiple: int = 1


SAME = Layout()
TRANSPOSED = Layout(transposed=True)


@dataclass(frozen=True, slots=True)
class Rule:
    """One tensor there (or one an expert) and the weights here that it holds."""

    theirs: str
    ours: tuple[str, ...]
    layout: Layout = SAME
    """How the tensor holds them."""
    rows: tuple[tuple[int, int], ...] | None = None
    """Which rows of each weight the tensor holds (first, last + 1), where other tensors hold the rest; None for all."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Tensors of a checkpoint that hold no weight: a regular expression for whole names, and why.

    ``kept`` are those that transformers saves with every checkpoint: they stay beside the weights for the way back.
    """

    pattern: str
    why: str
    kept: bool = False


Naming = tuple[tuple[str, str], ...]
"""Pairs (beginning of a name in the rules, beginning of it in a file); the first pair that fits a name is applied."""


def renamed(name: str, naming: Naming) -> str:
    """A name of the rules as a file of this naming writes it."""
    for ours, theirs in naming:
        if name.startswith(ours):
            return theirs + name[len(ours) :]
    return name


def canonical(name: str, naming: Naming) -> str:
    """A name of such a file as the rules have it."""
    for ours, theirs in naming:
        if name.startswith(theirs):
            return ours + name[len(theirs) :]
    return name


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Tensors that hold weights of a part which is not built: a shell pattern for whole names, and what the part is."""

    pattern: str
    what: str


def rule(theirs: str, *ours: str, **layout: object) -> Rule:
    """A rule by its names and the fields of its layout."""
    return Rule(theirs, ours, Layout(**layout) if layout else SAME)  # pyright: ignore[reportArgumentType]


def both(theirs: str, *ours: str, **layout: object) -> tuple[Rule, Rule]:
    """Rules for a weight and its bias; a bias has no inputs to be transposed with."""
    flat = {key: value for key, value in layout.items() if key != "transposed"}
    return (
        rule(f"{theirs}.weight", *(f"{name}.weight" for name in ours), **layout),
        rule(f"{theirs}.bias", *(f"{name}.bias" for name in ours), **flat),
    )
