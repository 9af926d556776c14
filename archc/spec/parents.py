"""``extends`` of files: the chain from a spec to its oldest parent, read and laid over each other."""

from __future__ import annotations

import os

from archc.errors import Problem, SpecError
from archc.spec.marks import problem_at
from archc.spec.merge import EXTENDS, amend, without_extends
from archc.spec.nodes import Mark, Node
from archc.spec.reader import read_file
from archc.spec.scalars import shortened

MAX_PARENTS = 16


def with_parents(root: Node, file: str, problems: list[Problem]) -> Node:
    """The tree of a file laid over its parents, oldest first, without ``extends``.

    Raises:
        SpecError: a parent can't be read, the chain is too long, or it comes back to a file it holds.
    """
    chain = [root]
    files = [file]
    while (stated := chain[-1].mapping.get(EXTENDS)) is not None and stated.value is not None:
        parent = _parent(stated, chain[-1], files, problems)
        try:
            node, found = read_file(parent, parent)
        except SpecError as error:
            raise SpecError([*problems, *error.problems]) from None
        problems += found
        chain.append(node)
        files.append(parent)
    if len(chain) > 1 and "name" not in root.mapping:
        mark = root.key_mark(EXTENDS)
        problems.append(problem_at(mark, (), "name is required: a child states its own", code="missing"))
    merged = without_extends(chain.pop())
    while chain:
        merged = amend(merged, without_extends(chain.pop()))
    return merged


def _parent(stated: Node, child: Node, files: list[str], problems: list[Problem]) -> str:
    mark = stated.mark
    if not isinstance(stated.value, str):
        message = "one parent a file" if isinstance(stated.value, list) else "should be the path of another spec"
        raise SpecError([*problems, _problem(mark, message)])
    parent = os.path.normpath(os.path.join(os.path.dirname(files[-1]), stated.value))
    known = [_real(file) for file in files]
    if _real(parent) in known:
        cycle = " -> ".join([*files[known.index(_real(parent)) :], parent])
        raise SpecError([*problems, _problem(mark, f"the parents come back to where they started ({cycle})")])
    if len(files) > MAX_PARENTS:
        raise SpecError([*problems, _problem(mark, f"more than {MAX_PARENTS} parents")])
    if not _exists(parent):
        near = next((name for name in (f"{parent}.yaml", f"{parent}.yml") if _exists(name)), "")
        hint = f"Did you mean {shortened(stated.value)}{near.removeprefix(parent)}?" if near else ""
        raise SpecError([*problems, _problem(mark, f"no such file (found {shortened(stated.value)})", hint)])
    return parent


def _real(file: str) -> str:
    try:
        return os.path.realpath(file)
    except (OSError, ValueError):
        return file


def _exists(file: str) -> bool:
    try:
        return os.path.exists(file)
    except ValueError:
        return False


def _problem(mark: Mark, message: str, hint: str = "") -> Problem:
    return problem_at(mark, (EXTENDS,), message, hint, code="extends")
