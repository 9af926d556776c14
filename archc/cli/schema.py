"""``archc schema``."""

from __future__ import annotations

import click

from archc.cli.options import Command


@click.command("schema", cls=Command)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write a file instead of stdout.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Tables of every key for people instead.")
def command(output: str | None, as_markdown: bool) -> None:
    """The JSON Schema of specs with the installed kinds, for editors."""
    text = _tables() if as_markdown else _schema()
    if output is None:
        click.echo(text, nl=False)
        return
    from pathlib import Path

    from archc.cli.files import write_atomically

    write_atomically(Path(output), text)
    click.echo(f"wrote {output}", err=True)


def _schema() -> str:
    import json

    from archc.spec.json_schema import json_schema

    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _tables() -> str:
    from archc.spec.manual import manual

    return manual()
