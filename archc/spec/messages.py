"""Validation errors to problems: where the value was written, what is wrong, what was found, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from archc.errors import Problem
from archc.spec.advice import Advice
from archc.spec.faults import MAX_PROBLEMS, Error
from archc.spec.marks import key_mark, problem_at
from archc.spec.near import listed
from archc.spec.nodes import Node, Path
from archc.spec.wording import code, expected, found, wrong

_KEY_ERRORS = ("missing", "extra_forbidden")
_KIND_ERRORS = ("kind_unknown", "kind_name")


def explain(root: Node, errors: Sequence[Error], broken: Iterable[tuple[str, str]] = ()) -> list[Problem]:
    """The problems behind pydantic's errors. Paths below ``broken`` were reported before."""
    skip = set(broken)
    placed = [(_path(root, error), error) for error in errors]
    placed = [(path, error) for path, error in placed if path[:2] not in skip and not _is_unreadable(root.at(path))]
    placed = _without_echoes(root, placed)
    advice = Advice(root, [path for path, error in placed[: 10 * MAX_PROBLEMS] if error["type"] == "extra_forbidden"])
    problems: list[Problem] = []
    for path, group in _grouped(placed).items():
        if len(problems) > MAX_PROBLEMS:
            break
        problems += _at_one_path(root, path, group, advice)
    if advice.is_config():
        message = "this looks like a Hugging Face config: archc import config.json writes the spec"
        problems.append(Problem(message=message, file=root.mark.file, code="config"))
    return problems


def _path(root: Node, error: Error) -> Path:
    """The error's path without the steps that pydantic adds for the members of a union."""
    path: list[str | int] = []
    node: Node | None = root
    location = error["loc"]
    for at, step in enumerate(location):
        inner = None if node is None else node.child(step)
        if inner is None and not (error["type"] in _KEY_ERRORS and at == len(location) - 1) and _is_tag(step):
            continue
        path.append(step)
        node = inner
    return tuple(path)


def _is_unreadable(node: Node | None) -> bool:
    """Whether the value was no scalar of the language, which its reader has reported."""
    return node is not None and isinstance(node.value, float) and math.isnan(node.value)


def _is_tag(step: str | int) -> bool:
    return isinstance(step, str) and (
        not step.isidentifier() or step != step.lower() or step in ("bool", "int", "float", "str", "none")
    )


def _without_echoes(root: Node, placed: list[tuple[Path, Error]]) -> list[tuple[Path, Error]]:
    """Less the errors about a value that a kind handed on to a kind inside it: they are reported where it was written."""
    known = {(path, error["type"]) for path, error in placed}

    def is_echo(path: Path, error: Error) -> bool:
        return root.at(path) is None and any(
            ((*path[:cut], path[-1]), error["type"]) in known for cut in range(len(path) - 2, 1, -1)
        )

    return [(path, error) for path, error in placed if not is_echo(path, error)]


def _grouped(placed: list[tuple[Path, Error]]) -> dict[Path, list[Error]]:
    groups: dict[Path, list[Error]] = {}
    for path, error in placed:
        groups.setdefault(path, []).append(error)
    return groups


def _at_one_path(root: Node, path: Path, errors: list[Error], advice: Advice) -> list[Problem]:
    """One problem for the members of a union, else one for each error."""
    node = root.at(path)
    if node is not None and len(errors) > 1 and not any(error["type"] in _KEY_ERRORS for error in errors):
        worded = [error for error in errors if not expected(error)]
        if worded and isinstance(node.value, str | Mapping):
            errors = worded[:1]
        elif not worded:
            should = listed(dict.fromkeys(expected(error) for error in errors), "or")
            number = any(error["type"] in ("int_type", "float_type") for error in errors)
            message = f"should be {should} (found {found(node, number=number)})"
            return [problem_at(node.mark, path, message, code=code(errors[0]["type"]))]
    return [problem for error in errors if (problem := _one(root, path, error, advice)) is not None]


def _one(root: Node, path: Path, error: Error, advice: Advice) -> Problem | None:
    kind = error["type"]
    if kind == "missing":
        worded = advice.missing(path)
        return None if worded is None else problem_at(key_mark(root, path[:-1]), path[:-1], *worded, code="missing")
    if kind == "extra_forbidden":
        worded = advice.unknown(path)
        return None if worded is None else problem_at(key_mark(root, path), path, *worded, code="unknown_key")
    node = root.at(path)
    if kind == "track_missing" and advice.is_misspelt(error["ctx"]["message"].partition(" ")[0], path):
        return None
    if kind in ("kind_missing", "track_missing"):
        worded = advice.kind_missing(path, error) if kind == "kind_missing" else wrong(error, root, "")
        return problem_at(key_mark(root, path), path, *worded, code="missing")
    if kind in _KIND_ERRORS and node is not None and isinstance(node.value, Mapping):
        key = "policy" if "policy" in node.mapping else "kind"
        path, node = ((*path, key), node.child(key)) if key in node.mapping else (path, node)
    if node is None:
        # A default, or a value that a kind worked out: the mapping that holds it is the nearest place.
        message, suggestion = wrong(
            error, Node(error.get("input") if isinstance(error.get("input"), str) else None, root.mark), ""
        )
        return problem_at(key_mark(root, path[:-1]), path, message, suggestion, code=code(kind))
    if advice.follows_comma(path):
        return None
    mark = key_mark(root, path) if kind in ("name", "sections") else node.mark
    message, suggestion = wrong(error, node, str(path[-1]) if path else "")
    return problem_at(mark, path, message, suggestion, code=code(kind))
