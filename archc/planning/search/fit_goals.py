"""What a fit is asked for: a number to come close to, or bytes to stay within."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from archc.planning.search.sweep_costs import Totals
from archc.units import gib, si


@dataclass(frozen=True, slots=True)
class Goal:
    """A quantity of a variant, and the number asked for, which a limit never passes. ``unit`` is ``B`` or empty for counts."""

    name: str
    target: int
    unit: str
    is_limit: bool
    value: Callable[[Totals], int]

    def distance(self, totals: Totals) -> float:
        """How far a variant is from the number, as a part of it."""
        return abs(self.value(totals) - self.target) / self.target

    def allows(self, totals: Totals) -> bool:
        """Whether a limit holds; a number to come close to forbids nothing."""
        return not self.is_limit or self.value(totals) <= self.target

    def show(self, number: int) -> str:
        """A number of this goal for people."""
        return f"{gib(number)} ({number:,} B)" if self.unit == "B" else f"{si(number)} ({number:,})"

    def met(self, totals: Totals) -> Met:
        """What a variant comes to."""
        found = self.value(totals)
        return Met(self.name, self.unit, self.is_limit, self.target, found, 100 * (found - self.target) / self.target)


@dataclass(frozen=True, slots=True)
class Met:
    """A goal and what a solution comes to; below the number ``difference_percent`` is negative."""

    name: str
    unit: str
    is_limit: bool
    target: int
    found: int
    difference_percent: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def goals_of(
    *,
    params: int | None,
    active_params: int | None,
    cache_at: tuple[int, int] | None,
    memory_bytes: int | None,
    memory_name: str,
    max_model_len: int,
    batch_size: int,
) -> list[Goal]:
    """The goals that are stated; lengths in tokens, sizes in bytes."""
    goals: list[Goal] = []
    batch = f", batch {batch_size}" if batch_size > 1 else ""
    if params is not None:
        goals.append(Goal("parameters", params, "", False, lambda totals: totals.parameters))
    if active_params is not None:
        goals.append(Goal("active parameters", active_params, "", False, lambda totals: totals.active_parameters))
    if cache_at is not None:
        length, limit = cache_at
        name = f"cache at {length:,} tokens{batch}"
        goals.append(Goal(name, limit, "B", True, lambda totals: totals.cache_bytes(length)))
    if memory_bytes is not None:
        name = f"weights and cache at {max_model_len:,} tokens{batch}, within {memory_name}"
        goals.append(
            Goal(
                name,
                memory_bytes,
                "B",
                True,
                lambda totals: totals.weight_bytes + totals.cache_bytes(max_model_len),
            )
        )
    return goals
