"""The choice of values that comes closest to some goals: all of a small grid, or bisection along its longest key.

Along one key costs are taken to rise or to fall throughout, as parameters do with a width and a cache with a length. Then what
is best lies beside the place where a goal is crossed, and that is found in the logarithm of the number of values. Whether they
did at all values that were asked is checked, and a line where they did not is asked whole.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from archc.errors import ArchcError, SpecError
from archc.planning.search.fit_goals import Goal
from archc.planning.search.sweep_costs import Totals
from archc.planning.search.sweep_engine import Engine
from archc.planning.search.sweep_parts import Choice

MAX_GRID = 500
"""Combinations that are tried one and all; beyond, one key is bisected."""

MAX_LINES = 5_000
"""Combinations of the other keys, each a bisection of its own."""

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Search:
    """The variants that were tried. ``known`` has their costs, ``errors`` why the others are none, by choice."""

    engine: Engine
    goals: Sequence[Goal]
    known: dict[Choice, Totals] = field(default_factory=dict[Choice, Totals])
    errors: dict[Choice, str] = field(default_factory=dict[Choice, str])
    bisected: str = ""
    """The key along which costs were taken to be monotone; empty where every combination was tried."""

    @property
    def num_tried(self) -> int:
        return len(self.known) + len(self.errors)

    def run(self, progress: Progress | None = None) -> None:
        """Try what it takes to know the best.

        Raises:
            ArchcError: there are too many combinations to search.
        """
        counts = [key.number for key in self.engine.keys]
        total = math.prod(counts)
        if total <= MAX_GRID:
            for done, choice in enumerate(itertools.product(*map(range, counts))):
                if progress is not None:
                    progress("combinations", done, total)
                self.totals(choice)
            return
        at = counts.index(max(counts))
        lines = total // counts[at]
        if lines > MAX_LINES:
            shown = " x ".join(f"{count:,}" for count in counts)
            raise ArchcError(
                f"{total:,} combinations ({shown}) are too many: but for the longest key there may be {MAX_LINES:,}; "
                "narrow the ranges, or give them steps"
            )
        self.bisected = self.engine.keys[at].name
        others = [range(count) for position, count in enumerate(counts) if position != at]
        for done, rest in enumerate(itertools.product(*others)):
            if progress is not None:
                progress("lines", done, lines)
            _Line(self, rest, at, counts[at]).search()

    def totals(self, choice: Choice) -> Totals | None:
        """The costs of a variant; None where it is invalid."""
        if choice in self.known:
            return self.known[choice]
        if choice not in self.errors:
            try:
                fault = self.engine.fault(choice)
                if not fault:
                    self.known[choice] = self.engine.totals(choice)
                    return self.known[choice]
            except ArchcError as error:
                fault = _reason(error)
            self.errors[choice] = fault
        return None

    def best(self) -> Choice | None:
        """The allowed variant that is closest to what is asked; the first of equal ones. None where nothing is allowed."""
        allowed = [choice for choice, totals in self.known.items() if all(goal.allows(totals) for goal in self.goals)]
        return min(allowed, key=lambda choice: (self._distance(choice), choice), default=None)

    def _distance(self, choice: Choice) -> float:
        """Over the numbers to come close to; where only limits are stated, over those, to fill them."""
        numbers = [goal for goal in self.goals if not goal.is_limit] or self.goals
        return sum(goal.distance(self.known[choice]) for goal in numbers)

    def commonest_error(self) -> str:
        """Why most invalid variants were invalid."""
        (text, count), *_ = Counter(self.errors.values()).most_common(1)
        return f"{text} ({count:,} of {self.num_tried:,} tried)"


class _Line:
    """All values of one key, at one choice of the others."""

    def __init__(self, search: Search, rest: Choice, at: int, number: int) -> None:
        self._search, self._rest, self._at, self._number = search, rest, at, number
        self._valid: dict[int, Totals] = {}

    def search(self) -> None:
        first, last = self._nearest_valid(0, -1, self._number), self._nearest_valid(self._number - 1, -1, self._number)
        if first is None or last is None:
            return
        for goal in self._search.goals:
            rises = goal.value(self._valid[last]) >= goal.value(self._valid[first])
            self._bisect(first, last, goal, rises=rises)
        if not all(self._is_monotone(goal) for goal in self._search.goals):
            for index in range(self._number):
                self._ask(index)

    def _bisect(self, low: int, high: int, goal: Goal, *, rises: bool) -> None:
        """Ask both sides of where a goal is crossed."""
        while high - low > 1:
            middle = self._nearest_valid((low + high) // 2, low, high)
            if middle is None:
                return
            is_above = goal.value(self._valid[middle]) > goal.target
            low, high = (low, middle) if is_above is rises else (middle, high)

    def _nearest_valid(self, index: int, low: int, high: int) -> int | None:
        """The valid place between two others that is nearest to ``index``."""
        for near in _outwards(index, low, high):
            if self._ask(near):
                return near
        return None

    def _ask(self, index: int) -> bool:
        if index not in self._valid:
            totals = self._search.totals((*self._rest[: self._at], index, *self._rest[self._at :]))
            if totals is None:
                return False
            self._valid[index] = totals
        return True

    def _is_monotone(self, goal: Goal) -> bool:
        values = [goal.value(self._valid[index]) for index in sorted(self._valid)]
        return values == sorted(values) or values == sorted(values, reverse=True)


def _outwards(index: int, low: int, high: int) -> Iterator[int]:
    """The numbers between two others, from one of them on to both sides."""
    for step in range(max(index - low, high - index)):
        if index + step < high:
            yield index + step
        if step and index - step > low:
            yield index - step


def _reason(error: ArchcError) -> str:
    """Which rule a variant breaks: the first that its error names."""
    if not isinstance(error, SpecError):
        return str(error)
    problem = error.problems[0]
    return f"{problem.path}: {problem.message}" if problem.path else problem.message
