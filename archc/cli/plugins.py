"""``archc plugins``."""

from __future__ import annotations

import click

from archc.cli.options import Command, json_option, print_json


@click.command("plugins", cls=Command)
@click.option("--family", metavar="FAMILY", help="Only this family.")
@click.option("-v", "--verbose", is_flag=True, help="Load each plugin and show the first line of its documentation.")
@json_option
def command(family: str | None, verbose: bool, as_json: bool) -> None:
    """The kinds, ops, lowerings and exporters that are installed, and the packages they come from. Loads none of them."""
    from archc import registry
    from archc.errors import PluginError

    installed = registry.installed()
    families = sorted({plugin.family for plugin in installed} | set(registry.FAMILIES))
    if family is not None and family not in families:
        raise PluginError(f"unknown family {family!r}; known: {', '.join(families)}")
    rows: list[dict[str, str]] = []
    for plugin in installed:
        if family is not None and plugin.family != family:
            continue
        row = {
            "family": plugin.family,
            "name": plugin.name,
            "package": plugin.package,
            "version": plugin.version,
            "target": plugin.target,
        }
        if verbose:
            row["summary"] = _summary(plugin.family, plugin.name)
        rows.append(row)
    if as_json:
        print_json({"plugins": rows})
        return
    from archc.cli.table import print_table

    columns = ("family", "name", "package", "version", "target", *(("summary",) if verbose else ()))
    print_table(columns, [tuple(row[column] for column in columns) for row in rows], left=len(columns))


def _summary(family: str, name: str) -> str:
    """First line of a plugin's documentation; a plugin that can't be loaded says why."""
    from archc import registry
    from archc.errors import PluginError

    try:
        text = registry.load(family, name).__doc__ or ""
    except PluginError as error:
        return str(error)
    return text.strip().split("\n", 1)[0]
