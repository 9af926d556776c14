"""Errors that a user can cause. Everything else is an assertion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a spec: where it stands, what is wrong, what was found, what to do.

    ``path`` is the dotted path inside the spec (``mixers.mla.v_head_dim``); ``line`` and ``column`` count from 1
    and are 0 when the problem concerns the whole file; ``code`` is stable and short (``unknown_key``).
    """

    message: str
    path: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    code: str = "value"
    suggestion: str = ""
    severity: str = "error"

    def __str__(self) -> str:
        place = ":".join(str(p) for p in (self.file, self.line, self.column) if p)
        parts = [place, self.path, self.message]
        text = ": ".join(part for part in parts if part)
        return f"{text}. {self.suggestion}" if self.suggestion else text

    def to_json(self) -> dict[str, str | int]:
        """The problem as plain data, for ``--json``."""
        return asdict(self)


class ArchcError(Exception):
    """Base of every error a user can cause; the command line prints it without a traceback and exits with 2."""


class SpecError(ArchcError):
    """A spec that can't be used, with every problem that could be judged in one run; ``file`` is the spec that was asked for."""

    def __init__(self, problems: Sequence[Problem], file: str = "") -> None:
        assert problems, "a SpecError needs at least one problem"
        self.problems = tuple(problems)
        self.file = file or self.problems[0].file
        super().__init__("\n".join(str(p) for p in self.problems))


class PluginError(ArchcError):
    """A plugin that is missing, doubled or broken; the message names the packages."""


class GraphError(ArchcError):
    """A kind whose ``define`` builds something illegal; the message names the scope and the op."""


class CheckFailedError(ArchcError):
    """A self-check did not hold (exit code 1): the output must not be trusted."""


class MissingExtraError(ArchcError):
    """A command needs an optional dependency; the message says what to install."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'archc-compiler[{extra}]'")
