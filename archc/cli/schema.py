"""``archc schema``."""

from __future__ import annotations

import click

from archc.cli.options import Command, print_json


@click.command("schema", cls=Command)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write a file instead of stdout.")
def command(output: str | None) -> None:
    """The JSON Schema of specs with the installed kinds, for editors."""
    from archc.spec.json_schema import json_schema

    schema = json_schema()
    if output is None:
        print_json(schema)
        return
    import json
    from pathlib import Path

    from archc.cli.files import write_atomically

    write_atomically(Path(output), json.dumps(schema, indent=2, ensure_ascii=False) + "\n")
    click.echo(f"wrote {output}", err=True)
