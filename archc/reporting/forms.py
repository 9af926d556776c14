"""Closed forms as plain data: what a page is given instead of numbers.

A form is a list of terms ``[coefficient, factor, ...]``. A factor is the name of a symbol, or the place of an atom in the pool:
``["min", form, form]`` or ``["ceil", form, step]``. Integers that a double can't hold are written as texts.
"""

from __future__ import annotations

from typing import Any

from archc.ir.size import Ceil, Dim, Min, Size, simplify

MAX_SAFE_INTEGER = (1 << 53) - 1
"""Up to here JSON's numbers are exact in a browser (ECMAScript, Number.MAX_SAFE_INTEGER)."""

Number = int | str
Factor = str | int
Form = list[list[Number | Factor]]


def exact(number: int) -> Number:
    """An integer as JSON holds it exactly."""
    return number if abs(number) <= MAX_SAFE_INTEGER else str(number)


class Pool:
    """Forms and atoms of one model, each distinct one once; ``form`` gives its place in ``forms``."""

    def __init__(self) -> None:
        self.forms: list[Form] = []
        self.atoms: list[list[Any]] = []
        self._forms: dict[str, int] = {}
        self._atoms: dict[str, int] = {}

    def form(self, dim: Dim) -> int:
        """The place of a polynomial."""
        dim = simplify(dim)
        text = str(dim)
        if text not in self._forms:
            written = self._terms(dim)
            self._forms[text] = len(self.forms)
            self.forms.append(written)
        return self._forms[text]

    def to_json(self) -> dict[str, Any]:
        return {"forms": self.forms, "atoms": self.atoms}

    def _terms(self, dim: Dim) -> Form:
        if isinstance(dim, int):
            return [[exact(dim)]]
        return [
            [exact(coefficient), *(self._factor(dim, factor) for factor in factors)]
            for factors, coefficient in dim.terms.items()
        ]

    def _factor(self, size: Size, factor: str) -> Factor:
        atom = size.atoms.get(factor)
        if atom is None:
            return factor
        if factor not in self._atoms:
            written = self._atom(atom)
            self._atoms[factor] = len(self.atoms)
            self.atoms.append(written)
        return self._atoms[factor]

    def _atom(self, atom: Min | Ceil) -> list[Any]:
        if isinstance(atom, Min):
            return ["min", self._terms(atom.left), self._terms(atom.right)]
        return ["ceil", self._terms(atom.size), exact(atom.step)]
