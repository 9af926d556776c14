"""Parts of ``archc estimate`` that a flag asks for: each has options of its own and a module that estimates and prints.

A part's module has ``estimated(asked) -> found``, where ``found.to_json()`` is plain data, and ``print_found(found)``. It is
imported when its flag is given, so an estimate without flags costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from archc.cli.options import BYTES, LENGTH
from archc.cli.plan_options import gpu_option, split_options

if TYPE_CHECKING:
    from archc.graph.graph import Graph
    from archc.planning.parallel import Parallel

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Asked:
    """What a part is asked: a traced model, the options of every estimate (None: not stated), ``values`` by parameter name."""

    graph: Graph
    batch_size: int
    max_model_len: int | None
    source_len: int | None
    dtype: str | None
    kv_cache_dtype: str | None
    block_size: int | None
    values: dict[str, Any]

    @property
    def parallel(self) -> Parallel | None:
        """The stated split."""
        from archc.cli.plan_options import parallel_of

        return parallel_of(self.values)


@dataclass(frozen=True, slots=True)
class Part:
    """A flag, the key of its numbers in JSON, its module, and the options that mean something beside it only."""

    flag: str
    key: str
    text: str
    module: str
    options: tuple[click.Option, ...]

    def estimated(self, asked: Asked) -> Any:
        """What the part's module finds."""
        return import_module(self.module).estimated(asked)

    def print_found(self, found: Any) -> None:
        """The same for people."""
        import_module(self.module).print_found(found)


PARTS = (
    Part(
        "serve",
        "serving",
        "Memory of serving on every rank, and what batch and length fit --gpu.",
        "archc.cli.estimate_serve",
        (
            click.Option(
                ["--prefill-tokens"],
                type=LENGTH,
                metavar="TOKENS",
                help="Tokens read at once, of which the workspace is made. Default: 8192.",
            ),
            click.Option(
                ["--prefix-caching"], is_flag=True, help="Keep blocks and states so that prompts can share them."
            ),
            click.Option(
                ["--shared-prefix"],
                type=LENGTH,
                metavar="TOKENS",
                help="Tokens that all sequences begin with, kept once; with --prefix-caching.",
            ),
            click.Option(
                ["--mamba-block-size"],
                type=LENGTH,
                metavar="TOKENS",
                help="Keep a recurrent state every so many tokens; with --prefix-caching. Default: one more, at the last block.",
            ),
            click.Option(
                ["--workspace"],
                type=BYTES,
                metavar="BYTES",
                help="Workspace of a rank. Default: activations and logits.",
            ),
            click.Option(
                ["--overhead"],
                type=BYTES,
                metavar="BYTES",
                help="What a runtime takes on a device beside what is counted, an assumption. Default: 1GiB.",
            ),
            click.Option(
                ["--gpu-memory-utilization"],
                type=click.FloatRange(0, 1, min_open=True),
                metavar="PART",
                help="The part of a device's memory that may be used. Default: 0.9.",
            ),
            click.Option(
                ["--warn-share"],
                type=click.FloatRange(0, 1, min_open=True),
                metavar="PART",
                help="Warn where a request of one token takes more than this part of the pool. Default: 0.05.",
            ),
        ),
    ),
)
"""Order of their sections."""

_SHARED = ("gpu", "gpus", "tp", "pp", "ep", "dp", "cp")


def part_options(function: Function) -> Function:
    """The flags, the options that parts share, and those of each."""
    for part in reversed(PARTS):
        for option in reversed(part.options):
            _add(function, option)
    function = gpu_option(split_options(function))
    for part in reversed(PARTS):
        function = click.option(f"--{part.flag}", is_flag=True, help=part.text)(function)
    return function


def _add(function: Any, option: click.Option) -> None:
    # click collects the options of a function here, last one first, as its own decorator does.
    params: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
    params.append(option)


def asked_parts(ctx: click.Context, values: dict[str, Any]) -> list[Part]:
    """The parts whose flags are given.

    Raises:
        UsageError: an option is given without the flag that it belongs to; all such options are named.
    """
    asked = [part for part in PARTS if values[part.flag]]
    owners = {option.name: part for part in PARTS for option in part.options}
    wrong: list[str] = []
    for param in ctx.command.params:
        name = param.name or ""
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        owner = owners.get(name)
        flags = [part.flag for part in PARTS] if name in _SHARED else [] if owner is None else [owner.flag]
        if flags and not any(part.flag in flags for part in asked):
            wrong.append(f"{param.opts[0]} belongs to {' or '.join(f'--{flag}' for flag in flags)}")
    if wrong:
        raise click.UsageError("; ".join(wrong))
    return asked
