"""Options for files that a command writes, judged before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

PICTURES = (".png", ".svg", ".pdf")


class OutputFile(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]: no older click has any
    """A file with one of some endings, in a folder that is there; the command gets its path."""

    name = "file"

    def __init__(self, endings: Sequence[str]) -> None:
        self.endings = tuple(endings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(value)
        if path.suffix.lower() not in self.endings:
            self.fail(f"{str(value)!r} should end in {', '.join(self.endings)}", param, ctx)
        if path.is_dir():
            self.fail(f"{str(value)!r} is a folder", param, ctx)
        if not path.absolute().parent.is_dir():
            self.fail(f"there is no folder {path.absolute().parent}", param, ctx)
        return path
