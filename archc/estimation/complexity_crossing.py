"""The length from which one closed form stays below another, exactly: by bisection over integers, never by a fit.

Closed forms are polynomials in n, ``min`` of two of them and ``ceil`` of one over a step. Between two places where a ``min``
changes sides and on every residue of n by the steps, a difference of such forms is one polynomial. Its sign changes lie
between those of its differences, so bisection finds each of them, from the constant difference upwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import comb, lcm

from archc.ir.size import Ceil, Dim, Min, Size, evaluate

FARTHEST = 1 << 80
"""No ``min`` changes sides beyond: longer than any window times any chunk."""


def crossing(kind: Dim, full: Dim) -> int | None:
    """The least n from which on, at every length, ``kind`` costs less than ``full``; None where it never does.

    Both are closed forms in ``n`` and ``batch``, of which one sequence is looked at.
    """
    gain = full - kind
    if isinstance(gain, int):
        return 1 if gain > 0 else None
    degree, period = _degree(gain), _period(gain)
    starts = sorted({1, *_breaks(gain)})
    last = _last_loss_at_the_end(gain, starts[-1], degree, period)
    if last is None:
        return None
    for start, end in zip(reversed(starts[:-1]), reversed(starts[1:]), strict=True):
        if last:
            break
        last = _last_loss_between(gain, start, end, degree, period)
    return last + 1


def _last_loss_at_the_end(gain: Size, start: int, degree: int, period: int) -> int | None:
    """The last n >= start at which nothing is gained, 0 where there is none, None where there is no last one."""
    last = 0
    # From the last residue down, since the loss that one of them ends with is behind that of most others.
    for first in reversed(range(start, start + period)):
        path = _Path(gain, first, period, degree)
        ahead = 0 if last < first else (last - first) // period + 1
        if path.gains_for_good(ahead):
            continue
        if not path.ends_in_gain():
            return None
        steps = 1
        while not path.gains_for_good(ahead + steps):
            steps *= 2
        found = path.last_loss(ahead + steps)
        last = max(last, first + found * period if found is not None else 0)
    return last


def _last_loss_between(gain: Size, start: int, end: int, degree: int, period: int) -> int:
    """The last n in start ... end - 1 at which nothing is gained, 0 where there is none."""
    last = 0
    for first in range(start, min(start + period, end)):
        most = (end - 1 - first) // period
        if most <= degree:
            lost = [step for step in range(most + 1) if _value(gain, first + step * period) <= 0]
            found = lost[-1] if lost else None
        else:
            found = _Path(gain, first, period, degree).last_loss(most)
        last = max(last, first + found * period if found is not None else 0)
    return last


class _Path:
    """The polynomial m -> gain(first + m * period), by its differences at 0."""

    def __init__(self, gain: Size, first: int, period: int, degree: int) -> None:
        row = [_value(gain, first + step * period) for step in range(degree + 1)]
        self.differences: list[int] = []
        while row:
            self.differences.append(row[0])
            row = [after - before for before, after in pairwise(row)]

    def value(self, order: int, step: int) -> int:
        """The difference of some order at a step; order 0 is the gain itself."""
        return sum(comb(step, up) * known for up, known in enumerate(self.differences[order:]))

    def gains_for_good(self, step: int) -> bool:
        """Whether it gains here and nothing takes that away later; holds from some step on, or never."""
        return self.value(0, step) > 0 and all(
            self.value(order, step) >= 0 for order in range(1, len(self.differences))
        )

    def ends_in_gain(self) -> bool:
        """Whether the gain is above 0 for every large step."""
        return next((known > 0 for known in reversed(self.differences) if known), False)

    def last_loss(self, most: int) -> int | None:
        """The last step in 0 ... most at which nothing is gained."""
        cuts: list[int] = []
        for order in reversed(range(len(self.differences))):
            cuts = self._sign_changes(order, [0, *cuts, most + 1])
        # Between two cuts the gain keeps its sign.
        for start, end in zip(reversed([0, *cuts]), reversed([*cuts, most + 1]), strict=True):
            if end > start and self.value(0, start) <= 0:
                return end - 1
        return None

    def _sign_changes(self, order: int, cuts: Sequence[int]) -> list[int]:
        """The steps at which a difference is above 0 where it was not before, or the reverse; it is monotone between cuts."""
        found: set[int] = set()
        for start, end in pairwise(cuts):
            if end <= start:
                continue
            found.add(start)
            is_above = self.value(order, start) > 0
            if (self.value(order, end - 1) > 0) != is_above:
                low, high = start, end - 1
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if (self.value(order, middle) > 0) == is_above else (low, middle)
                found.add(high)
        return sorted(found - {0})


def _value(gain: Size, n: int) -> int:
    return gain.evaluate({"batch": 1, "n": n})


def _atoms(size: Dim) -> Iterator[Min | Ceil]:
    """The atoms of a form and of the forms inside them."""
    if isinstance(size, int):
        return
    for atom in size.atoms.values():
        yield atom
        for inner in (atom.left, atom.right) if isinstance(atom, Min) else (atom.size,):
            yield from _atoms(inner)


def _breaks(gain: Size) -> Iterator[int]:
    """Every n at which a ``min`` is the other side's for the first time; each changes sides once, as windows do."""
    for atom in _atoms(gain):
        if isinstance(atom, Min) and (found := _side_changes(atom)) is not None:
            yield found


def _side_changes(atom: Min) -> int | None:
    def is_left(n: int) -> bool:
        env = {"batch": 1, "n": n}
        return evaluate(atom.left, env) < evaluate(atom.right, env)

    low, high = 1, FARTHEST
    before = is_left(low)
    if is_left(high) == before:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_left(middle) == before else (low, middle)
    return high


def _period(size: Dim) -> int:
    """A number of tokens after which every ``ceil`` in a form has the same rest again."""
    steps = [1]
    for atom in () if isinstance(size, int) else size.atoms.values():
        if isinstance(atom, Ceil):
            steps.append(atom.step * _period(atom.size))
        else:
            steps += [_period(atom.left), _period(atom.right)]
    return lcm(*steps)


def _degree(size: Dim) -> int:
    """The highest power of n that can stand in a form."""
    if isinstance(size, int):
        return 0
    return max((sum(_atom_degree(size, text) for text in key) for key in size.terms), default=0)


def _atom_degree(size: Size, text: str) -> int:
    atom = size.atoms.get(text)
    if atom is None:
        return int(text == "n")
    if isinstance(atom, Ceil):
        return _degree(atom.size)
    return max(_degree(atom.left), _degree(atom.right))
