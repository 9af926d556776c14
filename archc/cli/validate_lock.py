"""``archc validate --lock``: whether a spec still describes the graph of a lockfile, and if not, what changed."""

from __future__ import annotations

from typing import Any

import click

from archc.errors import CheckFailedError

MAX_LINES = 100


def check_lock(spec: str, lockfile: str, *, as_json: bool) -> dict[str, Any]:
    """The comparison as data, printed as text unless data is wanted.

    Raises:
        ArchcError: the lockfile can't be read.
    """
    from archc.expansion import expand
    from archc.graph.lock_diff import difference, read_lock
    from archc.graph.lockfile import to_lock
    from archc.spec.load import load_spec

    # Read first: it is the cheaper of the two, and the likelier to be wrong.
    old = read_lock(lockfile)
    found = difference(old, to_lock(expand(load_spec(spec))), file=lockfile)
    if not as_json:
        for note in found.notes:
            click.echo(f"  note: {note}", err=True)
        if not found.changes:
            click.echo(f"{spec}: as locked in {lockfile}")
    return {"file": lockfile, "changes": found.changes, "notes": found.notes}


def changed(spec: str, lockfile: str, changes: list[str]) -> CheckFailedError:
    """The error that says what changed, a line each."""
    count = len(changes)
    lines = [f"{spec} is not as locked in {lockfile}: {count} change{'s' if count != 1 else ''}"]
    lines += [f"  {line}" for line in changes[:MAX_LINES]]
    if count > MAX_LINES:
        lines.append(f"  and {count - MAX_LINES} more")
    return CheckFailedError("\n".join(lines))
