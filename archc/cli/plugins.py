"""``archc plugins``: what is installed, what a kind is, and the beginnings of a package with a new one."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.options import Command, Group, json_option, print_json

SHOWN_SPECS = 3


@click.group("plugins", cls=Group, invoke_without_command=True)
@click.option("--family", metavar="FAMILY", help="Only this family.")
@click.option("-v", "--verbose", is_flag=True, help="Also versions, code, and the shipped specs that use each kind.")
@json_option
@click.pass_context
def command(ctx: click.Context, family: str | None, verbose: bool, as_json: bool) -> None:
    """The kinds, ops, lowerings and exporters that are installed, and the packages they come from. Loads none of them."""
    if ctx.invoked_subcommand is not None:
        if family is not None or verbose or as_json:
            raise click.UsageError(
                f"options of archc plugins say nothing to {ctx.invoked_subcommand}; put its own behind it"
            )
        return
    rows = _rows(family, with_usage=verbose or as_json)
    if as_json:
        print_json({"plugins": rows})
        return
    from archc.cli.table import print_table

    columns = ("family", "name", "package", *(("version", "target", "used in") if verbose else ()), "summary")
    for row in rows:
        row["used in"] = shortened_list(row.get("used_in", []))
    print_table(columns, [tuple(str(row[column]) for column in columns) for row in rows], left=len(columns))


@command.command("show", cls=Command)
@click.argument("kind", metavar="FAMILY.NAME")
@click.option(
    "--set", "values", multiple=True, metavar="KEY=VALUE", help="A key of the kind, for what is shown. Can be repeated."
)
@json_option
def show(kind: str, values: tuple[str, ...], as_json: bool) -> None:
    """A kind: its keys with types and defaults, the ops, weights and states it comes to, and who can lower them."""
    from archc.cli.plugin_show import describe, print_description

    found = describe(kind, values)
    if as_json:
        print_json(found)
    else:
        print_description(found)


@command.command("new", cls=Command)
@click.argument("name", metavar="NAME")
@click.option("--family", default="mixer", show_default=True, metavar="FAMILY", help="What it is a kind of.")
@click.option("-o", "--output", type=click.Path(), metavar="DIR", help="Where to write. Default: archc-NAME.")
def new(name: str, family: str, output: str | None) -> None:
    """A package with a kind NAME to start from: pyproject.toml, the kind, a test that holds it to the contract, README.md."""
    from pathlib import Path

    from archc.cli.plugin_new import write_package

    folder = write_package(name, family, None if output is None else Path(output))
    click.echo(f"{folder}: a package with the {family} {name}. Install it and run its test:")
    click.echo(f"  pip install -e {folder} && pytest {folder}")


def _rows(family: str | None, *, with_usage: bool) -> list[dict[str, Any]]:
    from archc import registry
    from archc.cli.plugin_source import first_line
    from archc.errors import PluginError

    installed = registry.installed()
    families = sorted({plugin.family for plugin in installed} | set(registry.FAMILIES))
    if family is not None and family not in families:
        raise PluginError(f"unknown family {family!r}; known: {', '.join(families)}")
    rows: list[dict[str, Any]] = [
        {
            "family": plugin.family,
            "name": plugin.name,
            "package": plugin.package,
            "version": plugin.version,
            "target": plugin.target,
            "summary": first_line(plugin.target),
        }
        for plugin in installed
        if family is None or plugin.family == family
    ]
    if with_usage:
        # Reading the shipped specs loads the kinds that they name.
        from archc.cli.plugin_usage import usage

        used = usage()
        for row in rows:
            row["used_in"] = used.get((row["family"], row["name"]), [])
    return rows


def shortened_list(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - SHOWN_SPECS
    return ", ".join(names[:SHOWN_SPECS]) + (f" and {more} more" if more > 0 else "")
