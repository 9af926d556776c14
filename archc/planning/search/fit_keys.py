"""Free keys of a fit as people write them: ``stack.num_layers=12..96..4``, ``hidden_size=multiple_of:128``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from archc.errors import Problem, SpecError
from archc.planning.search.sweep_parts import Key
from archc.planning.search.sweep_values import illegal, parse_range, plain_node, unknown, values_of
from archc.spec.near import nearest
from archc.spec.nodes import Node, dotted, is_list, is_mapping
from archc.spec.scalars import shortened

GROWTH = 16
"""``multiple_of`` goes up to so many times the present value."""

_MULTIPLE = re.compile(r"multiple_of:\s*([1-9][0-9]{0,17})")


def free_keys(free: Iterable[str] | Mapping[str, Sequence[Any]], tree: Node, file: str) -> list[Key]:
    """The free keys of ``KEY=RANGE`` texts, or of a mapping from keys to the values they may have, in order.

    The last step of a path is enough where the spec has it once.

    Raises:
        SpecError: with everything that is wrong with any of them.
    """
    problems: list[Problem] = []
    keys: list[Key] = []
    stated: Iterable[tuple[str, Any]]
    if isinstance(free, Mapping):
        stated = cast("Mapping[str, Any]", free).items()
    else:
        stated = (_parted(text, problems) for text in _texts(free))
    for name, values in stated:
        if not name:
            continue
        try:
            path = _path(name, tree)
            keys.append(_key(path, _values(path, values, tree)))
        except SpecError as error:
            problems += error.problems
    if not keys and not problems:
        problems.append(_problem("", "names no key, so there is nothing to solve for"))
    for at, key in enumerate(keys):
        if any(key.name == other.name for other in keys[:at]):
            problems.append(_problem(key.name, "is free twice"))
        problems += illegal(key, "--free") or unknown(key, keys, tree, file, "--free")
    if problems:
        raise SpecError(problems, file)
    return keys


def _texts(free: Iterable[str]) -> Iterable[str]:
    return (free,) if isinstance(free, str) else free


def _parted(text: str, problems: list[Problem]) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not name.strip():
        message = "should be KEY=RANGE, as in stack.num_layers=12..96..4 or hidden_size=multiple_of:128"
        problems.append(_problem(text, message))
        return "", ""
    return name.strip(), values.strip()


def _path(name: str, tree: Node) -> str:
    """The whole path of a key that may be named by its last step alone."""
    if "." in name or name in tree.mapping:
        return name
    leaves = [dotted(path) for path, _ in _leaves(tree)]
    found = [path for path in leaves if path.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError([_problem(name, "stands more than once", f"Say which: {', '.join(found)}")])
    near = nearest(name, list(dict.fromkeys(path.rpartition(".")[2] for path in leaves)))
    raise SpecError([_problem(name, "the spec states no such key", f"Did you mean {near}?" if near else "")])


def _leaves(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    for name, inner in node.mapping.items():
        if is_mapping(inner.value):
            yield from _leaves(inner, (*path, name))
        else:
            yield (*path, name), inner


def _values(path: str, values: Any, tree: Node) -> Sequence[Any]:
    if not isinstance(values, str):
        if not is_list(values) and not isinstance(values, range):
            raise SpecError([_problem(path, "takes a list or a range of values")])
        if len(values) == 0:
            raise SpecError([_problem(path, "takes at least one value (found nothing)")])
        return values
    if (found := _MULTIPLE.fullmatch(values)) is not None:
        step = int(found[1])
        present = tree.at(path.split("."))
        now = None if present is None else present.value
        if not isinstance(now, int) or isinstance(now, bool) or now < 1:
            message = f"has no number now, so multiple_of can't say how far to go; {step}..HI..{step} says it"
            raise SpecError([_problem(path, message)])
        return range(step, max(now * GROWTH, step) + 1, step)
    try:
        numbers = parse_range(values)
    except ValueError as error:
        raise SpecError([_problem(path, str(error))]) from None
    return numbers if numbers is not None else values_of(path, values, "--free")


def _key(name: str, values: Sequence[Any]) -> Key:
    def node(index: int) -> Node:
        value = values[index]
        return value if isinstance(value, Node) else plain_node(value, f"--free {shortened(name)}")

    return Key(name, len(values), node)


def _problem(name: str, message: str, suggestion: str = "") -> Problem:
    return Problem(message=message, suggestion=suggestion, path=shortened(name), file="--free", code="free")
