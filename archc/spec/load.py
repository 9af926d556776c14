"""The entrance: a file or a text to a valid Spec, or every problem it has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from archc.errors import Problem, SpecError
from archc.spec.faults import MAX_PROBLEMS, Error
from archc.spec.marks import key_mark, problem_at
from archc.spec.merge import merge_siblings, set_value
from archc.spec.near import nearest
from archc.spec.nodes import Node, dotted, is_mapping
from archc.spec.parents import with_parents
from archc.spec.reader import read_file, read_text, read_value
from archc.spec.scalars import shortened
from archc.spec.schedule import placed
from archc.spec.schema import PLACED_SECTIONS, Spec, check_layers
from archc.spec.shipped import shipped_specs

_MAX_STEPS = 16


class Loaded(NamedTuple):
    """A spec, what is odd about it, and the merged tree it was made from."""

    spec: Spec
    warnings: list[Problem]
    tree: Node


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """The spec in a file, or the shipped one of that name; each override is ``path=value``.

    Raises:
        SpecError: with all problems that can be judged in one run.
    """
    return load_tree(path, overrides).spec


def load_spec_with_warnings(path: str | Path, overrides: Sequence[str] = ()) -> tuple[Spec, list[Problem]]:
    """As ``load_spec``, with what is legal but probably not meant."""
    loaded = load_tree(path, overrides)
    return loaded.spec, loaded.warnings


def loads_spec(text: str, *, file: str = "<string>", overrides: Sequence[str] = ()) -> Spec:
    """The spec in a text; ``extends`` is relative to the folder of ``file``.

    Raises:
        SpecError: with all problems that can be judged in one run.
    """
    root, problems = read_text(text, file)
    return _load(root, file, problems, overrides).spec


def load_tree(path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """As ``load_spec``, with the tree that remembers where each value was written."""
    file = _file(os.fspath(path))
    root, problems = read_file(file, file)
    return _load(root, file, problems, overrides)


def _file(path: str) -> str:
    """The path itself, or a shipped spec's where it is a bare name and no file."""
    is_name = os.path.basename(path) == path and not path.endswith((".yaml", ".yml"))
    if not is_name or not path or "\0" in path or os.path.exists(path):
        return path
    shipped = shipped_specs()
    if path in shipped:
        return str(shipped[path])
    near = nearest(path, shipped)
    hint = (
        f"Did you mean {near}?"
        if near
        else f"Shipped are {shortened(', '.join(shipped), limit=300)}"
        if shipped
        else ""
    )
    raise SpecError(
        [
            Problem(
                message="no such file, and no shipped spec of that name",
                suggestion=hint,
                file=shortened(path),
                code="file",
            )
        ]
    )


def read_tree(path: str | Path, overrides: Sequence[str] = ()) -> tuple[Node, str]:
    """A spec's tree before siblings are merged and anything is judged, and its file: what many variants start from.

    Raises:
        SpecError: it can't be read, or an override is none.
    """
    file = _file(os.fspath(path))
    root, problems = read_file(file, file)
    tree = _laid_over(root, file, problems, overrides)
    if problems:
        raise SpecError(_readable(problems, file), file)
    return tree, file


def _load(root: Node, file: str, problems: list[Problem], overrides: Sequence[str]) -> Loaded:
    return judged(_laid_over(root, file, problems, overrides), file, problems)


def _laid_over(root: Node, file: str, problems: list[Problem], overrides: Sequence[str]) -> Node:
    try:
        tree = with_parents(root, file, problems)
    except SpecError as error:
        raise SpecError(_readable(list(error.problems), file), file) from None
    for override in overrides:
        tree = _overridden(tree, override, problems)
    return tree


def judged(tree: Node, file: str, problems: list[Problem] | None = None) -> Loaded:
    """The spec of a tree as ``read_tree`` gives it; ``problems`` are those that were found before.

    Raises:
        SpecError: with all problems that can be judged in one run.
    """
    problems = [] if problems is None else problems
    siblings = merge_siblings(tree, problems)
    tree = siblings.root
    data = tree.plain()
    spec, errors = _validated(data)
    if errors:
        # What words mistakes is imported when there are some: start-up is most of the time that a valid spec takes.
        from archc.spec.messages import explain

        problems += explain(tree, errors, siblings.broken)
    if problems or spec is None:
        raise SpecError(_readable(problems, file), file)
    return Loaded(spec, _warnings(tree, siblings.extended), tree)


def _validated(data: Any) -> tuple[Spec | None, list[Error]]:
    """The spec, or pydantic's errors and those of the patterns, which pydantic asks for only when all else is valid."""
    try:
        return Spec.model_validate(data), []
    except ValidationError as error:
        errors: list[Error] = list(error.errors(include_url=False))
    layers: list[Error] = [
        {"loc": path, "type": fault.type, "ctx": fault.context, "msg": fault.message()}
        for path, fault in check_layers(data)
    ]
    known = {(error["loc"], error["type"]) for error in layers}
    return None, [error for error in errors if (error["loc"], error["type"]) not in known] + layers


def _overridden(tree: Node, override: str, problems: list[Problem]) -> Node:
    path, equals, text = override.partition("=")
    file = f"--set {shortened(override)}"
    steps = path.strip().split(".")
    if not equals or not all(steps):
        problems.append(Problem(message="should be path=value, as in stack.num_layers=7", file=file, code="override"))
        return tree
    if len(steps) > _MAX_STEPS:
        problems.append(Problem(message=f"a path has at most {_MAX_STEPS} steps", file=file, code="override"))
        return tree
    if steps == ["extends"]:
        problems.append(Problem(message="a file's parent can't be set", file=file, code="override"))
        return tree
    try:
        node, found = read_value(text, file, lines=False)
    except SpecError as error:
        problems += error.problems
        return tree
    problems += [
        replace(problem, path=shortened(".".join(filter(None, (dotted(steps), problem.path))))) for problem in found
    ]
    return set_value(tree, steps, node, file)


def _warnings(tree: Node, extended: frozenset[str]) -> list[Problem]:
    used = set(extended)
    for section in PLACED_SECTIONS:
        used |= placed(_mapping(tree.child(section)))
    return [
        problem_at(
            key_mark(tree, (section, name)),
            (section, name),
            "is neither placed nor extended",
            code="unused",
            severity="warning",
        )
        for section in ("mixers", "ffns")
        for name in _mapping(tree.child(section))
        if name not in used
    ]


def _mapping(node: Node | None) -> Mapping[str, Any]:
    value = None if node is None else node.plain()
    return value if is_mapping(value) else {}


def _readable(problems: list[Problem], file: str) -> list[Problem]:
    """By place, each once, and no more than somebody reads."""
    found = sorted(_once(problems), key=lambda problem: _order(problem, file))
    if len(found) <= MAX_PROBLEMS:
        return found
    return [
        *found[:MAX_PROBLEMS],
        Problem(message=f"more mistakes follow these {MAX_PROBLEMS}", file=file, code="many"),
    ]


def _once(problems: list[Problem]) -> list[Problem]:
    """Each mistake once: what one entry wrote and others extended is found in all of them."""
    first: dict[Any, Problem] = {}
    for problem in problems:
        place = (problem.file, problem.line, problem.column) if problem.line else problem.path
        first.setdefault((place, problem.message), problem)
    return list(first.values())


def _order(problem: Problem, file: str) -> tuple[int, str, float, int]:
    """By place, the loaded file first; what concerns a whole file comes after its lines."""
    return problem.file != file, problem.file, problem.line or float("inf"), problem.column
