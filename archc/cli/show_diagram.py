"""A diagram as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from archc.cli.files import write_atomically
from archc.drawing.diagram import diagram
from archc.errors import ArchcError
from archc.spec.load import load_spec


def write_diagram(spec: str, overrides: Sequence[str], file: str) -> None:
    """The picture of a spec at FILE.svg; a file that is there is replaced once the new one is whole.

    Raises:
        ArchcError: the place is a folder, in none, or for another format.
    """
    path = Path(file)
    if path.is_dir():
        raise ArchcError(f"{path} is a folder; a diagram is a file, as in {path / 'model.svg'}")
    if path.suffix.lower() != ".svg":
        raise ArchcError(
            f"{path}: a diagram is written as .svg; browsers and vector editors open it and save it as png or pdf"
        )
    if not path.parent.is_dir():
        raise ArchcError(f"{path.parent} is no folder, so {path.name} can't be written there")
    write_atomically(path, diagram(load_spec(spec, overrides)))
    click.echo(f"wrote {path}")
