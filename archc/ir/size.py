"""Sizes that stay symbolic: integer polynomials in ``batch``, ``seq`` (new tokens), ``past`` (cached tokens), ``capacity``.

A decoder that reads an encoder has two more: ``source``, the tokens that the encoder is given in this call, none while the
decoder goes on, and ``memory``, those that it was ever given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Union


class Min:
    """The atom ``min(left, right)``."""

    __slots__ = ("left", "right", "text")

    def __init__(self, left: Size, right: Size) -> None:
        self.left, self.right = left, right
        self.text = f"min({left}, {right})"

    def value(self, env: Mapping[str, int]) -> int:
        return min(self.left.evaluate(env), self.right.evaluate(env))

    def substitute(self, env: Mapping[str, Dim]) -> Dim:
        return minimum(self.left.substitute(env), self.right.substitute(env))


class Ceil:
    """The atom ``ceil(size / step)``, for pages and chunks."""

    __slots__ = ("size", "step", "text")

    def __init__(self, size: Size, step: int) -> None:
        self.size, self.step = size, step
        self.text = f"ceil(({size})/{step})"

    def value(self, env: Mapping[str, int]) -> int:
        return -(-self.size.evaluate(env) // self.step)

    def substitute(self, env: Mapping[str, Dim]) -> Dim:
        return ceil_div(self.size.substitute(env), self.step)


Atom = str | Min | Ceil
Dim = Union[int, "Size"]
"""A number or a polynomial; shapes hold plain ints wherever they can."""


class Size:
    """An integer polynomial: a mapping from a sorted tuple of atom texts to its coefficient.

    ``atoms`` keeps the objects behind the texts that are not plain symbols. Equal polynomials are equal and hash equal.
    """

    __slots__ = ("atoms", "terms")

    def __init__(self, terms: Mapping[tuple[str, ...], int], atoms: Mapping[str, Min | Ceil]) -> None:
        self.terms = {key: value for key, value in terms.items() if value}
        self.atoms = atoms

    def __add__(self, other: Dim) -> Size:
        other = _size(other)
        terms = dict(self.terms)
        for key, value in other.terms.items():
            terms[key] = terms.get(key, 0) + value
        return Size(terms, {**self.atoms, **other.atoms} if other.atoms else self.atoms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Dim) -> Size:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Size:
        return -self + other

    def __mul__(self, other: Dim) -> Size:
        if isinstance(other, int):
            return Size({key: value * other for key, value in self.terms.items()}, self.atoms)
        terms: dict[tuple[str, ...], int] = {}
        for key, value in self.terms.items():
            for other_key, other_value in other.terms.items():
                product = tuple(sorted(key + other_key))
                terms[product] = terms.get(product, 0) + value * other_value
        return Size(terms, {**self.atoms, **other.atoms} if other.atoms else self.atoms)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.constant == other
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        constant = self.constant
        return hash(constant) if constant is not None else hash(frozenset(self.terms.items()))

    @property
    def constant(self) -> int | None:
        """The number, when no symbol is left."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The number for given symbols; a missing symbol is a KeyError."""
        total = 0
        for key, value in self.terms.items():
            for atom in key:
                known = self.atoms.get(atom)
                value *= env[atom] if known is None else known.value(env)
            total += value
        return total

    def substitute(self, env: Mapping[str, Dim]) -> Dim:
        """The polynomial with some symbols replaced by numbers or other polynomials."""
        total: Dim = 0
        for key, value in self.terms.items():
            term: Dim = value
            for atom in key:
                known = self.atoms.get(atom)
                term = term * (env.get(atom, symbol(atom)) if known is None else known.substitute(env))
            total = total + term
        return simplify(total)

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for key, value in sorted(self.terms.items(), key=lambda item: (-len(item[0]), item[0])):
            factors = "*".join(key)
            number = abs(value)
            part = str(number) if not key else factors if number == 1 else f"{number}*{factors}"
            if not text:
                text = part if value > 0 else f"-{part}"
            else:
                text += f" + {part}" if value > 0 else f" - {part}"
        return text

    __repr__ = __str__


def _size(value: Dim) -> Size:
    return value if isinstance(value, Size) else Size({(): value}, {})


def _atom(atom: Min | Ceil) -> Size:
    return Size({(atom.text,): 1}, {atom.text: atom})


def symbol(name: str) -> Size:
    """The polynomial that is one symbol."""
    return Size({(name,): 1}, {})


def simplify(value: Dim) -> Dim:
    """A plain int when no symbol is left."""
    if isinstance(value, int):
        return value
    constant = value.constant
    return value if constant is None else constant


def minimum(left: Dim, right: Dim) -> Dim:
    """min of two sizes; folded when both are numbers."""
    left, right = simplify(left), simplify(right)
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return _atom(Min(_size(left), _size(right)))


def ceil_div(size: Dim, step: int) -> Dim:
    """ceil(size / step), exact for negative sizes too."""
    size = simplify(size)
    if isinstance(size, int):
        return -(-size // step)
    return _atom(Ceil(size, step))


def exact_quotient(size: Dim, by: int) -> Dim | None:
    """The size divided by a number; None where a coefficient is no multiple of it."""
    if isinstance(size, int):
        return None if size % by else size // by
    if any(value % by for value in size.terms.values()):
        return None
    return Size({key: value // by for key, value in size.terms.items()}, size.atoms)


def product(dims: Iterable[Dim]) -> Dim:
    """Elements of a shape."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def evaluate(value: Dim, env: Mapping[str, int]) -> int:
    """The number behind a dimension."""
    return value if isinstance(value, int) else value.evaluate(env)


BATCH, SEQ, PAST, CAPACITY = symbol("batch"), symbol("seq"), symbol("past"), symbol("capacity")
SOURCE, MEMORY = symbol("source"), symbol("memory")
TOTAL = PAST + SEQ
"""Tokens in the cache after this call."""
