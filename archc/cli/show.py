"""``archc show``."""

from __future__ import annotations

import click

from archc.cli.options import Command, json_option, print_json, set_option, spec_argument


@click.command("show", cls=Command)
@spec_argument
@click.option("--resolved", "is_resolved", is_flag=True, help="Print the merged spec with the origin of each value.")
@click.option("--lock", "is_lock", is_flag=True, help="Print the lockfile: the graph as canonical JSON.")
@click.option(
    "--diagram",
    type=click.Path(),
    metavar="FILE.svg",
    help="Draw stacks, kinds, widths, parameters and caches instead.",
)
@set_option
@json_option
def command(
    spec: str, is_resolved: bool, is_lock: bool, diagram: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """The layers that SPEC describes, counted from 0, and each part's share of the parameters."""
    if is_resolved and is_lock:
        raise click.UsageError("--resolved and --lock print different things; choose one")
    if diagram is not None:
        if is_resolved or is_lock or as_json:
            raise click.UsageError("--diagram draws a picture; --resolved, --lock and --json print texts")
        from archc.cli.show_diagram import write_diagram

        write_diagram(spec, overrides, diagram)
        return
    if is_resolved:
        from archc.spec.resolved import resolved

        found = resolved(spec, overrides)
        if as_json:
            print_json(found.tree)
        else:
            click.echo(found.to_yaml(origins=True), nl=False)
        return
    from archc.expansion import expand
    from archc.spec.load import load_spec

    loaded = load_spec(spec, overrides)
    if is_lock:
        from archc.graph.lockfile import to_text

        click.echo(to_text(expand(loaded)), nl=False)
        return
    from archc.cli.show_text import print_layers, show_json

    if as_json:
        print_json(show_json(loaded))
    else:
        print_layers(loaded)
