"""``archc validate``."""

from __future__ import annotations

import click

from archc.cli.options import EXIT_PROBLEMS, Command, json_option, print_error, print_json, problems_of
from archc.errors import ArchcError, Problem


@click.command("validate", cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@json_option
@click.pass_context
def command(ctx: click.Context, files: tuple[str, ...], as_json: bool) -> None:
    """Check spec files, patterns of files (specs/**/*.yaml) or shipped names, and print every problem. Warnings pass."""
    problems: list[Problem] = []
    results: list[dict[str, object]] = []
    has_errors = False
    for file in _expanded(files):
        found, error = _check(file)
        problems += found
        is_valid = error is None
        has_errors = has_errors or not is_valid
        results.append({"file": file, "valid": is_valid})
        if as_json:
            continue
        if error is not None:
            print_error(error)
        else:
            click.echo(f"{file}: ok")
        for problem in found:
            if problem.severity == "warning":
                click.echo(f"  warning: {problem}", err=True)
    if as_json:
        print_json({"files": results, "problems": [problem.to_json() for problem in problems]})
    if has_errors:
        ctx.exit(EXIT_PROBLEMS)


def _check(file: str) -> tuple[list[Problem], ArchcError | None]:
    """What is wrong with a file, warnings included, and the error that stops its use."""
    from archc.expansion import expand
    from archc.graph.verify import verify
    from archc.spec.load import load_spec_with_warnings

    try:
        spec, warnings = load_spec_with_warnings(file)
        verify(expand(spec))
    except ArchcError as error:
        return list(problems_of(error)), error
    return warnings, None


def _expanded(files: tuple[str, ...]) -> list[str]:
    """File names with patterns replaced by what they match; a pattern without a match stays, to be reported as missing."""
    from glob import glob, has_magic

    names: list[str] = []
    for file in files:
        matches = sorted(glob(file, recursive=True)) if has_magic(file) else []
        names += matches or [file]
    return list(dict.fromkeys(names))
