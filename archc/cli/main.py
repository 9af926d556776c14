"""The entry point. It knows the commands by name and one line each, and imports the one that is invoked."""

from __future__ import annotations

import gc
import keyword
import os
import sys
from importlib import import_module

import click

from archc._version import __version__

COMMANDS = {
    "estimate": "Parameters, weight and cache bytes, and FLOPs of a spec.",
    "complexity": "How time and cache of a spec grow with the length, kind by kind.",
    "diff": "What is otherwise between two specs, in structure and cost, and why.",
    "compare": "Costs of several specs side by side, in tables and charts.",
    "plot": "Charts of specs: caches and FLOPs over the length, parameters by part; of training runs: losses and pace.",
    "report": "One page about specs to send to others: drawing, tables, charts, and sliders that recompute them.",
    "sweep": "Costs of every combination of some keys' values.",
    "fit": "Values of some keys at which a spec comes to a size, or fits a memory.",
    "show": "The layers that a spec describes, the merged spec, or its lockfile.",
    "validate": "Check spec files and print every problem.",
    "plan": "How training cuts a spec over ranks, what each holds, and what they send each other.",
    "train": "Train a spec on texts, on one device or many.",
    "attention": "What each token reads of each token: maps of attention as pictures and in numbers.",
    "build": "A PyTorch model: its module tree, or its files.",
    "export": "A fused ONNX model.",
    "generate": "Text or ids that a torch model writes.",
    "run": "Text or ids that an exported model writes.",
    "bench": "How fast an exported model runs, beside what memory allows.",
    "import": "The spec of a published model's config.json, every key accounted for.",
    "convert": "Weights of a checkpoint under archc's names, and back.",
    "inspect": "Which provider takes each node of an ONNX file, and what it can't run.",
    "tokenizer": "Learn a tokenizer from texts, or look at one.",
    "schema": "The JSON Schema of specs, for editors.",
    "hardware": "The devices that estimates know, with their figures and sources.",
    "plugins": "The kinds, ops and exporters that are installed.",
}
"""Command -> its one line. The module archc.cli.<command> holds it as ``command``; a word of Python's own ends in _."""


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"archc.cli.{cmd_name}{'_' * keyword.iskeyword(cmd_name)}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="archc", message="%(prog)s %(version)s")
def archc() -> None:
    """A compiler for model architectures: one YAML spec becomes exact costs, a PyTorch model and a fused ONNX file.

    Exit codes: 0 done, 1 a check failed, 2 the spec or the command line has problems.
    """


def run() -> None:
    """Run the command line; a reader that closes the pipe early is no error."""
    # Start-up makes many objects that live to the end: looking for cycles among them is a tenth of the time.
    gc.set_threshold(100_000, 10, 10)
    # Nor does pydantic have to search every installed package for plugins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        try:
            archc()
        finally:
            sys.stdout.flush()
            # And the closing interpreter need not search what is about to go.
            gc.freeze()
    except BrokenPipeError:
        # What is left in the buffer would fail again when the interpreter closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
