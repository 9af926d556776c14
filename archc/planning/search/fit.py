"""The values of some keys at which a spec comes to a number of parameters, or within a cache or a device: ``archc.fit``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeVar

from archc.errors import ArchcError, Problem, SpecError
from archc.estimation.estimate import DEFAULT_LENGTH_TOKENS
from archc.planning.hardware import find_device
from archc.planning.search.fit_goals import Goal, Met, goals_of
from archc.planning.search.fit_keys import free_keys
from archc.planning.search.fit_search import Progress, Search
from archc.planning.search.sweep_costs import Sizes
from archc.planning.search.sweep_engine import Engine
from archc.planning.search.sweep_parts import Choice
from archc.planning.search.sweep_values import shown
from archc.spec.load import Loaded, read_tree
from archc.spec.nodes import Node
from archc.spec.resolved import Resolved
from archc.units import parse_bytes

Result = TypeVar("Result")

WITHIN = 0.05
"""How far from a number, as a part of it, a solution may be unless the caller says otherwise."""


class NoFitError(ArchcError):
    """No values of the free keys give what is asked; the message names what stands against it."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A solution: ``values`` of the free keys, the goals ``met``, and further ``quantities`` of it.

    ``num_tried`` variants were judged, ``num_invalid`` of them were none. ``bisected`` names the key along which costs were
    taken to rise or fall throughout; empty where every combination was tried.
    """

    name: str
    values: dict[str, Any]
    met: tuple[Met, ...]
    quantities: dict[str, int]
    num_tried: int
    num_invalid: int
    num_combinations: int
    bisected: str
    _loaded: Loaded = field(repr=False, compare=False)

    def spec_text(self, name: str | None = None) -> str:
        """The spec with the solution written into it, complete in itself; ``name`` is its new name."""
        spec, root = self._loaded.spec, self._loaded.tree
        if name is not None:
            spec = spec.model_copy(update={"name": name})
        return Resolved(spec, [], root).to_yaml()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "values": self.values,
            "goals": [met.to_json() for met in self.met],
            "quantities": self.quantities,
            "num_tried": self.num_tried,
            "num_invalid": self.num_invalid,
            "num_combinations": self.num_combinations,
            "bisected": self.bisected or None,
        }


def fit(
    spec: str | PathLike[str],
    free: Iterable[str] | Mapping[str, Sequence[Any]],
    *,
    params: int | None = None,
    active_params: int | None = None,
    cache_at: tuple[int, int] | None = None,
    memory: str | int | None = None,
    max_model_len: int | None = None,
    batch_size: int = 1,
    overrides: Sequence[str] = (),
    within: float = WITHIN,
    progress: Progress | None = None,
) -> Fitted:
    """The values of free keys at which a spec comes closest to a number of parameters, or fills a cache or a memory.

    ``free`` maps keys to the values that they may have, or has texts as the command line takes them. ``params`` and
    ``active_params`` are numbers to come close to, to ``within`` that part of them. ``cache_at`` (tokens, bytes) and ``memory``
    (bytes, or a device of the catalogue) are limits: what a batch keeps at that length; the weights and what a batch keeps at
    ``max_model_len``, by default the spec's. With limits alone they are filled as far as the values go.

    Raises:
        NoFitError: nothing that is asked for is possible; the message says what stands against it.
        ArchcError: the spec can't be read, a key or an option is none, or there are too many combinations.
    """
    tree, file = read_tree(str(spec), overrides)
    length = _stated_length(tree) if max_model_len is None else max_model_len
    problems: list[Problem] = []
    keys = _collected(problems, lambda: free_keys(free, tree, file)) or []
    memory_bytes, memory_name = _collected(problems, lambda: _memory(memory)) or (None, "")
    goals = goals_of(
        params=params,
        active_params=active_params,
        cache_at=cache_at,
        memory_bytes=memory_bytes,
        memory_name=memory_name,
        max_model_len=length,
        batch_size=batch_size,
    )
    problems += _wrong_options(goals, length, batch_size, cache_at, within, is_asked=bool(goals or memory))
    if problems:
        raise SpecError(problems, file)
    lengths = {length: None} if cache_at is None else {cache_at[0]: None, length: None}
    engine = Engine(tree, file, keys, Sizes(batch_size, tuple(lengths)))
    search = Search(engine, goals)
    search.run(progress)
    best = search.best()
    if best is None or any(_is_far(goal, search, best, within) for goal in goals):
        raise NoFitError(_why_not(search, best, within))
    totals, loaded = search.known[best], engine.load(best)
    quantities = {
        "parameters": totals.parameters,
        "active_parameters": totals.active_parameters,
        "weight_bytes": totals.weight_bytes,
        **{f"cache_bytes_at_{tokens}": totals.cache_bytes(tokens) for tokens in lengths},
    }
    return Fitted(
        name=loaded.spec.name,
        values=_values(engine, best),
        met=tuple(goal.met(totals) for goal in goals),
        quantities=quantities,
        num_tried=search.num_tried,
        num_invalid=len(search.errors),
        num_combinations=math.prod(key.number for key in keys),
        bisected=search.bisected,
        _loaded=loaded,
    )


def _stated_length(tree: Node) -> int:
    stated = tree.child("max_position_embeddings")
    value = None if stated is None else stated.value
    return value if isinstance(value, int) and value > 0 else DEFAULT_LENGTH_TOKENS


def _memory(memory: str | int | None) -> tuple[int | None, str]:
    """(bytes, how they are called) of a size or of a device of the catalogue."""
    if memory is None or isinstance(memory, int):
        return memory, "the memory given"
    try:
        return parse_bytes(memory), memory
    except ValueError:
        device = find_device(memory)
        return device.memory_bytes, f"the memory of {device.name}"


def _collected(problems: list[Problem], read: Callable[[], Result]) -> Result | None:
    """What is read, or None and its problems among the others."""
    try:
        return read()
    except SpecError as error:
        problems += error.problems
    except ArchcError as error:
        problems.append(Problem(message=str(error), code="fit"))
    return None


def _wrong_options(
    goals: Sequence[Goal],
    length: int,
    batch_size: int,
    cache_at: tuple[int, int] | None,
    within: float,
    *,
    is_asked: bool,
) -> list[Problem]:
    numbers = {"max_model_len": length, "batch_size": batch_size, **({"cache_at": cache_at[0]} if cache_at else {})}
    numbers |= {goal.name: goal.target for goal in goals}
    texts = [f"{name} should be at least 1 (found {number})" for name, number in numbers.items() if number < 1]
    if not 0 <= within < 1:
        texts.append(f"within should be at least 0 and below 1 (found {within})")
    if not is_asked:
        texts.append("nothing is asked for: params, active_params, cache_at or memory")
    return [Problem(message=text, code="fit") for text in texts]


def _values(engine: Engine, choice: Choice) -> dict[str, Any]:
    return {key.name: shown(key.node(index)) for key, index in zip(engine.keys, choice, strict=True)}


def _is_far(goal: Goal, search: Search, choice: Choice, within: float) -> bool:
    return not goal.is_limit and goal.distance(search.known[choice]) > within


def _why_not(search: Search, best: Choice | None, within: float) -> str:
    """What stands against a fit: no valid variant, a number or a limit out of reach, or two goals against each other."""
    if not search.known:
        return f"no combination of the values is valid: {search.commonest_error()}"
    for goal in search.goals:
        reached = [goal.value(totals) for totals in search.known.values()]
        is_far = all(_is_far(goal, search, choice, within) for choice in search.known)
        if is_far or (goal.is_limit and min(reached) > goal.target):
            return _out_of_reach(goal, search)
    numbers = [goal for goal in search.goals if not goal.is_limit]
    near = [choice for choice in search.known if not any(_is_far(goal, search, choice, within) for goal in numbers)]
    if not near:
        return f"{' and '.join(goal.name for goal in numbers)} contradict each other: {_nearest(search, numbers, best)}"
    closest = min(near, key=lambda choice: (_excess(search, choice), choice))
    broken = [goal for goal in search.goals if not goal.allows(search.known[closest])]
    texts = [
        f"{goal.name} is {goal.show(goal.value(search.known[closest]))} > {goal.show(goal.target)}" for goal in broken
    ]
    asked = " and ".join(f"{goal.name} {goal.show(goal.target)}" for goal in numbers) or "the limits together"
    return f"{asked} can't be had within the limits: {'; '.join(texts)} at {_at(search, closest)}"


def _excess(search: Search, choice: Choice) -> float:
    """How far a variant is above its limits."""
    totals = search.known[choice]
    return sum(goal.distance(totals) for goal in search.goals if not goal.allows(totals))


def _nearest(search: Search, numbers: Sequence[Goal], best: Choice | None) -> str:
    choice = best if best is not None else next(iter(search.known))
    totals = search.known[choice]
    found = " and ".join(f"{goal.name} {goal.show(goal.value(totals))}" for goal in numbers)
    return f"the nearest are {found} at {_at(search, choice)}"


def _out_of_reach(goal: Goal, search: Search) -> str:
    """A number outside of what the values give, or between two of them."""
    by_value = sorted((goal.value(totals), choice) for choice, totals in search.known.items())
    (least, lowest), (most, highest) = by_value[0], by_value[-1]
    if least > goal.target:
        sign = "the smallest possible is {} > {}"
        return f"{goal.name}: {sign.format(goal.show(least), goal.show(goal.target))} at {_at(search, lowest)}"
    if most < goal.target:
        sign = "the largest possible is {} < {}"
        return f"{goal.name}: {sign.format(goal.show(most), goal.show(goal.target))} at {_at(search, highest)}"
    below = max(pair for pair in by_value if pair[0] <= goal.target)
    above = min(pair for pair in by_value if pair[0] >= goal.target)
    sides = " and ".join(f"{goal.show(value)} at {_at(search, choice)}" for value, choice in (below, above))
    return f"{goal.name}: nothing comes near {goal.show(goal.target)}; the nearest are {sides}"


def _at(search: Search, choice: Choice) -> str:
    return ", ".join(f"{name}={value}" for name, value in _values(search.engine, choice).items())
