"""``archc validate``."""

from __future__ import annotations

import click

from archc.cli.options import EXIT_CHECK_FAILED, EXIT_PROBLEMS, Command, json_option, print_error, print_json
from archc.errors import ArchcError, PluginError, Problem, SpecError


@click.command("validate", cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--lock",
    "lockfile",
    type=click.Path(),
    metavar="LOCKFILE",
    help="Fail (exit code 1) unless the one FILE gives the graph in LOCKFILE, as archc show --lock prints it.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, files: tuple[str, ...], lockfile: str | None, as_json: bool) -> None:
    """Check spec files, patterns of files (specs/**/*.yaml) or shipped names, and print every problem. Warnings pass."""
    problems: list[Problem] = []
    results: list[dict[str, object]] = []
    has_errors = False
    names = _expanded(files)
    if lockfile is not None and len(names) != 1:
        raise click.UsageError(f"--lock holds the graph of one spec (found {len(names)} files)")
    for file in names:
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
    data: dict[str, object] = {"files": results, "problems": [problem.to_json() for problem in problems]}
    changes: list[str] = []
    if lockfile is not None and not has_errors:
        from archc.cli.validate_lock import check_lock

        data["lock"] = found = check_lock(names[0], lockfile, as_json=as_json)
        changes = found["changes"]
    if as_json:
        print_json(data)
    if has_errors:
        ctx.exit(EXIT_PROBLEMS)
    if changes:
        from archc.cli.validate_lock import changed

        print_error(changed(names[0], str(lockfile), changes))
        ctx.exit(EXIT_CHECK_FAILED)


def _check(file: str) -> tuple[list[Problem], ArchcError | None]:
    """What is wrong with a file, warnings included, and the error that stops its use."""
    from archc.expansion import expand
    from archc.graph.verify import verify
    from archc.spec.load import load_spec_with_warnings

    if _matches_nothing(file):
        told = SpecError([Problem(message="matches no file", file=file, code="file")])
        return list(told.problems), told
    try:
        spec, warnings = load_spec_with_warnings(file)
        verify(expand(spec))
    except SpecError as error:
        return list(error.problems), error
    except ArchcError as error:
        # A graph or a plugin doesn't know which file asked for it.
        code = "plugin" if isinstance(error, PluginError) else "graph"
        told = SpecError([Problem(message=str(error), file=file, code=code)])
        return list(told.problems), told
    return warnings, None


def _matches_nothing(file: str) -> bool:
    from glob import has_magic
    from os.path import lexists

    return has_magic(file) and not lexists(file)


def _expanded(files: tuple[str, ...]) -> list[str]:
    """File names with patterns replaced by what they match; a pattern without a match stays, to be reported as missing."""
    from glob import glob, has_magic

    names: list[str] = []
    for file in files:
        matches = sorted(glob(file, recursive=True)) if has_magic(file) else []
        names += matches or [file]
    return list(dict.fromkeys(names))
