"""Files and texts to nodes. Whatever the bytes are, the answer is a tree or a SpecError, soon."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from typing import Any

import yaml

from archc.errors import Problem, SpecError
from archc.spec.events import Composer, TooMuchError
from archc.spec.marks import problem_at
from archc.spec.nodes import Node
from archc.spec.scalars import shortened

MAX_BYTES = 1 << 20


def read_text(text: str, file: str, what: str = "spec") -> tuple[Node, list[Problem]]:
    """The mapping a text holds, and the mistakes that did not hinder reading on; ``what`` is what messages call it.

    Raises:
        SpecError: not YAML, not a mapping, or beyond a limit.
    """
    node, problems = read_value(text, file)
    if node is None:
        raise SpecError([*problems, Problem(message=f"the {what} is empty", file=file, code="yaml")])
    if not isinstance(node.value, dict):
        problem = Problem(message=f"a {what} is a mapping of keys to values", file=file, code="yaml")
        raise SpecError([*problems, problem])
    return node, problems


def read_value(text: str, file: str, *, lines: bool = True) -> tuple[Node | None, list[Problem]]:
    """As ``read_text``, for a text that may hold any value or none; without ``lines`` marks name the file alone."""
    if len(text) > MAX_BYTES:
        raise SpecError([_too_big(file)])
    composer = Composer(file, lines=lines)
    try:
        # A lone surrogate can't be handed to the parser.
        text.encode("utf-8")
        node = composer.read(text.removeprefix("\ufeff"))
    except UnicodeEncodeError:
        raise SpecError([Problem(message="not text: holds half a character", file=file, code="yaml")]) from None
    except TooMuchError as error:
        problem = problem_at(error.mark, error.path, str(error), code="yaml")
        raise SpecError([*composer.problems, problem]) from None
    except yaml.YAMLError as error:
        problem = _syntax(error, file, text)
        raise SpecError([*composer.problems, problem if lines else replace(problem, line=0, column=0)]) from None
    return node, composer.problems


def read_file(path: str, file: str, what: str = "spec") -> tuple[Node, list[Problem]]:
    """As ``read_text``, for a file; ``file`` is its name in messages.

    Raises:
        SpecError: also when it is missing, no ordinary file, too big or not UTF-8.
    """
    try:
        # Opening a pipe or a device could wait for ever.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SpecError([Problem(message="is no file", file=file, code="file")])
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecError([Problem(message="no such file", file=file, code="file")]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError([Problem(message=f"can't be read: {reason}", file=shortened(file), code="file")]) from None
    if len(data) > MAX_BYTES:
        raise SpecError([_too_big(file)])
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text (byte 0x{data[error.start]:02x})"
        raise SpecError([Problem(message=message, file=file, line=line, column=1, code="yaml")]) from None
    return read_text(text, file, what)


def _too_big(file: str) -> Problem:
    return Problem(message=f"larger than {MAX_BYTES:,} bytes, which no spec is", file=file, code="yaml")


def _syntax(error: Any, file: str, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "can't be parsed"
    context = getattr(error, "context", None)
    message = f"not YAML: {shortened(str(what), limit=200)}" + (f" {shortened(str(context))}" if context else "")
    start = getattr(error, "context_mark", None)
    if mark is not None and start is not None and start.line < mark.line:
        message += f" that starts in line {start.line + 1}"
    if mark is not None and _at(text, mark) == "\t":
        message = "not YAML: a tab can't indent; use spaces"
    if mark is None:
        return Problem(message=message, file=file, code="yaml")
    return Problem(message=message, file=file, line=mark.line + 1, column=mark.column + 1, code="yaml")


def _at(text: str, mark: Any) -> str:
    """The character at a mark."""
    line: int = mark.line
    column: int = mark.column
    lines = text.split("\n", line + 1)
    return lines[line][column : column + 1] if line < len(lines) else ""
