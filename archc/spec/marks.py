"""Problems at the place where something was written."""

from __future__ import annotations

from archc.errors import Problem
from archc.spec.nodes import Mark, Node, Path, dotted
from archc.spec.scalars import shortened


def problem_at(
    mark: Mark, path: Path, message: str, suggestion: str = "", *, code: str = "value", severity: str = "error"
) -> Problem:
    """A problem at a mark."""
    return Problem(
        message=message,
        suggestion=suggestion,
        path=shortened(dotted(path), limit=200),
        file=mark.file,
        line=mark.line,
        column=mark.column,
        code=code,
        severity=severity,
    )


def key_mark(root: Node, path: Path) -> Mark:
    """Where the key at the end of a path was written; the whole file's mark for the top."""
    if not path:
        return Mark(root.mark.file)
    parent = root.at(path[:-1])
    if parent is None:
        return key_mark(root, path[:-1])
    return parent.key_mark(path[-1]) if isinstance(path[-1], str) else parent.mark
