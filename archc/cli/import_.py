"""``archc import``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from archc.cli.options import Command, json_option, print_json, require_extra

if TYPE_CHECKING:
    from pathlib import Path

    from archc.checkpoint.config import Account
    from archc.checkpoint.importing import Imported


@click.command("import", cls=Command)
@click.argument("source", metavar="CONFIG|DIR", type=click.Path(exists=True))
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write the spec there.")
@click.option("--name", metavar="NAME", help="Name of the spec. Default: that of the folder.")
@click.option("--overwrite", is_flag=True, help="Replace a file that holds something else.")
@click.option(
    "--check", is_flag=True, help="What became of every key: used, a class default, without effect, or refused."
)
@json_option
def command(source: str, output: str | None, name: str | None, overwrite: bool, check: bool, as_json: bool) -> None:
    """The spec of a config.json of transformers, or of the checkpoint folder that holds one."""
    from pathlib import Path

    from archc.checkpoint.config import ConfigError

    try:
        imported = _import(Path(source), name)
    except ConfigError as error:
        if check and not as_json:
            _print_accounts(error.family, error.accounts)
        raise
    if output is not None:
        from archc.cli.files import write_new

        write_new(Path(output), imported.text, overwrite=overwrite)
        click.echo(f"wrote {output}", err=True)
    if as_json:
        print_json(_to_json(imported))
    elif check:
        _print_accounts(imported.family, imported.accounts)
    elif output is None:
        click.echo(imported.text, nl=False)


def _import(source: Path, name: str | None) -> Imported:
    from archc.checkpoint.reading import has_tensors

    if source.is_dir() and has_tensors(source):
        # What the tensors say of the head needs numpy, which a configuration alone does not.
        require_extra("torch", ("numpy", "safetensors", "ml_dtypes"), "archc import of a folder with weights")
        from archc.checkpoint.opening import import_folder

        return import_folder(source, name=name)
    from archc.checkpoint.importing import import_config

    return import_config(source, name=name)


def _to_json(imported: Imported) -> dict[str, Any]:
    return {
        "family": imported.family,
        "name": imported.spec.name,
        "spec": imported.text,
        "accounts": [account.to_json() for account in imported.accounts],
    }


def _print_accounts(family: str, accounts: tuple[Account, ...]) -> None:
    from archc.cli.table import print_table

    words = {"used": "used", "default": "class default", "no effect": "no effect", "refused": "refused"}
    rows = [(account.key, _short(account.value), words[account.verdict], account.note) for account in accounts]
    click.echo(f"family {family}")
    print_table(("key", "value", "", ""), rows, left=4)
    counts = {verdict: sum(account.verdict == verdict for account in accounts) for verdict in words}
    click.echo(
        f"{counts['used']} used, {counts['default']} defaults, {counts['no effect']} without effect, "
        f"{counts['refused']} refused"
    )


def _short(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
