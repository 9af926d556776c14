"""Varied keys as people write them: ``mixers.kda.num_heads=16,32``, ``stack.num_layers=12..48..4``, or plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from archc.errors import Problem, SpecError
from archc.planning.search.sweep_parts import Key
from archc.spec.emit import flow
from archc.spec.load import judged
from archc.spec.merge import EXTENDS, NAMED_SECTIONS, set_value
from archc.spec.near import nearest
from archc.spec.nodes import Mark, Node, is_list, is_mapping
from archc.spec.reader import read_value
from archc.spec.scalars import shortened

MAX_VALUES = 1_000_000
"""Values of one key, and variants of one sweep."""

_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?:\.\.(?P<times>x)?(?P<step>{_NUMBER}))?")


def parse_range(text: str) -> Sequence[int | float] | None:
    """The numbers of ``16..64`` (by 1), ``16..64..8`` (by 8) or ``16..64..x2`` (doubling), ends included; None for no range.

    Raises:
        ValueError: it is one that holds nothing, or too much.
    """
    found = _RANGE.fullmatch(text.strip()) if len(text) <= 100 else None
    if found is None:
        return None
    low, high, step = (Decimal(found[name] or "1") for name in ("low", "high", "step"))
    if max(abs(low), abs(high)) >= 1 << 63:
        raise ValueError(f"{text}: too large a number")
    if high < low:
        raise ValueError(f"{text}: ends below its start; ranges go up")
    if found["times"] and (step <= 1 or low <= 0):
        raise ValueError(f"{text}: grows by a factor above 1 from a start above 0")
    if step <= 0:
        raise ValueError(f"{text}: a step is above 0")
    if not found["times"] and (high - low) / step >= MAX_VALUES:
        raise ValueError(f"{text}: more than {MAX_VALUES:,} values")
    is_whole = all("." not in part and "e" not in part.lower() for part in (found["low"], found["step"] or "1"))
    if is_whole and not found["times"]:
        return range(int(low), int(high) + 1, int(step))
    numbers: list[int | float] = []
    while low <= high:
        numbers.append(int(low) if is_whole else float(low))
        low = low * step if found["times"] else low + step
        if len(numbers) > MAX_VALUES:
            raise ValueError(f"{text}: more than {MAX_VALUES:,} values")
    return numbers


def plain_node(value: Any, file: str) -> Node:
    """Plain data as a node of a spec's tree."""
    mark = Mark(file)
    if is_mapping(value):
        return Node({str(key): plain_node(item, file) for key, item in value.items()}, mark)
    if is_list(value):
        return Node([plain_node(item, file) for item in value], mark)
    if isinstance(value, str | int | float | bool) or value is None:
        return Node(value, mark, text=flow(value), quoted=isinstance(value, str))
    raise SpecError([Problem(message=f"{type(value).__name__} is no value of a spec", file=file, code="vary")])


def keys_of(vary: Iterable[str] | Mapping[str, Sequence[Any]], tree: Node, file: str) -> list[Key]:
    """The varied keys of ``KEY=VALUES`` texts, or of a mapping from keys to values.

    Raises:
        SpecError: with everything that is wrong with any of them.
    """
    problems: list[Problem] = []
    keys: list[Key] = []
    if isinstance(vary, Mapping):
        for name, values in cast("Mapping[str, Any]", vary).items():
            if isinstance(values, str) or not is_list(values) or len(values) == 0:
                problems.append(_problem("--vary", name, "takes a list of values, at least one"))
            else:
                nodes = [plain_node(value, f"--vary {shortened(name)}") for value in values]
                keys.append(_key(name, nodes))
    else:
        for text in (vary,) if isinstance(vary, str) else vary:
            name, equals, values = text.partition("=")
            if not equals:
                problems.append(
                    _problem("--vary", text, "should be KEY=VALUE,VALUE, as in mixers.attn.num_heads=16,32")
                )
                continue
            try:
                keys.append(_key(name.strip(), values_of(name.strip(), values)))
            except SpecError as error:
                problems += error.problems
    if not keys and not problems:
        problems.append(_problem("--vary", "", "names no key, so there is nothing to vary"))
    seen: set[str] = set()
    for key in keys:
        if key.name in seen:
            problems.append(_problem("--vary", key.name, "is varied twice"))
        seen.add(key.name)
        problems += illegal(key)
    legal = [key for key in keys if not illegal(key)]
    for key in legal:
        problems += unknown(key, legal, tree, file)
    if problems:
        raise SpecError(problems, file)
    return keys


def _key(name: str, nodes: Sequence[Node]) -> Key:
    return Key(name, len(nodes), nodes.__getitem__)


def values_of(name: str, text: str, option: str = "--vary") -> list[Node]:
    """The values of a key between commas, ranges written out.

    Raises:
        SpecError: they can't be read, or there is none.
    """
    file = f"{option} {shortened(name)}"
    if not text.strip():
        raise SpecError([_problem(option, name, "takes at least one value (found nothing)")])
    try:
        node, problems = read_value(f"[{text}]", file, lines=False)
    except SpecError as error:
        hint = "Values stand between commas; texts with commas or colons in quotes"
        raise SpecError([_problem(option, name, problem.message, hint) for problem in error.problems]) from None
    found: list[Node] = []
    items = () if node is None or not is_list(node.value) else node.value
    for item in items:
        if isinstance(item.value, str) and not item.quoted:
            try:
                numbers = parse_range(item.value)
            except ValueError as error:
                raise SpecError([_problem(option, name, str(error))]) from None
            if numbers is not None:
                found += [plain_node(number, file) for number in numbers]
                continue
        found.append(item)
    if problems or not found:
        raise SpecError(problems or [_problem(option, name, f"can't be read as values (found {shortened(text)})")])
    return found


def illegal(key: Key, option: str = "--vary") -> list[Problem]:
    """What no spec could have at any place."""
    if not all(key.path):
        return [_problem(option, key.name, "should be a path, as in stack.num_layers")]
    if key.path == (EXTENDS,):
        return [_problem(option, key.name, "a file's parent can't be varied")]
    if len(key.path) > 16:
        return [_problem(option, key.name, "a path has at most 16 steps")]
    return []


def unknown(key: Key, keys: Sequence[Key], tree: Node, file: str, option: str = "--vary") -> list[Problem]:
    """That a spec has no such key, with the nearest; nothing where another varied key may bring it."""
    if any(_may_bring(other, key) for other in keys if other is not key):
        return []
    if key.path[0] in NAMED_SECTIONS and len(key.path) > 2:
        section = tree.child(key.path[0])
        known = () if section is None else tuple(section.mapping)
        if key.path[1] not in known:
            one = "mixer" if key.path[0] == "mixers" else "ffn"
            near = nearest(key.path[1], known)
            hint = f"Did you mean {near}?" if near else f"Known are {shortened(', '.join(known))}"
            return [_problem(option, key.name, f"no {one} is called {shortened(key.path[1])}", hint)]
    try:
        judged(set_value(tree, key.path, key.node(0), f"{option} {key.name}"), file)
    except SpecError as error:
        return [
            _problem(option, key.name, problem.message, problem.suggestion)
            for problem in error.problems
            if problem.code == "unknown_key" and f"{key.name}.".startswith(f"{problem.path}.")
        ]
    return []


def _may_bring(other: Key, key: Key) -> bool:
    """Whether a value of another key can decide which keys there are beside this one."""
    holder = other.path[:-1] if other.path[-1] in ("kind", "policy", EXTENDS) else other.path
    return len(holder) < len(key.path) and key.path[: len(holder)] == holder


def shown(node: Node | None) -> Any:
    """A value as a table shows it: a scalar itself, anything else as JSON."""
    value = None if node is None else node.plain()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    import json

    return json.dumps(value)


def _problem(option: str, name: str, message: str, suggestion: str = "") -> Problem:
    return Problem(message=message, suggestion=suggestion, path=shortened(name), file=option, code="vary")
