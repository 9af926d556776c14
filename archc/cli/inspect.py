"""``archc inspect``."""

from __future__ import annotations

import click

from archc.cli.options import EXIT_CHECK_FAILED, Command, json_option, print_json, require_extra


@click.command("inspect", cls=Command)
@click.argument("file", metavar="MODEL.onnx", type=click.Path())
@click.option(
    "--provider",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="Where the nodes should go. cuda asks a session where a GPU and the weights are, else the table of its kernels.",
)
@click.option("--fail-on-cpu", is_flag=True, help="Exit 1 if a node leaves the provider; shape arithmetic may.")
@click.option("--fail-on-memcpy", is_flag=True, help="Exit 1 if a value is copied between CPU and GPU at every run.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, file: str, provider: str, fail_on_cpu: bool, fail_on_memcpy: bool, as_json: bool
) -> None:
    """What an ONNX file is, which provider takes each of its nodes, what is copied, and the limits of ops that it meets.

    MODEL.onnx may be any file, or a folder with a model.onnx. Its weights are not read.
    """
    require_extra("onnx", ("onnx", "onnx_ir", "onnxruntime", "numpy", "ml_dtypes"), "archc inspect")
    from pathlib import Path

    from archc import registry
    from archc.cli.inspect_text import print_inspection
    from archc.cli.placement_text import failed_checks

    path = Path(file)
    inspect = registry.load("inspector", "onnx")
    found = inspect(path / "model.onnx" if path.is_dir() else path, provider).to_json()
    failed = failed_checks(found["placement"], on_cpu=fail_on_cpu, on_memcpy=fail_on_memcpy)
    if as_json:
        print_json(found | {"failed": failed})
    else:
        print_inspection(found)
    for line in failed:
        click.echo(f"archc: {line}", err=True)
    if failed:
        ctx.exit(EXIT_CHECK_FAILED)
