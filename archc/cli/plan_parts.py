"""Parts of ``archc estimate`` that a flag asks for: each has options of its own and a module that estimates and prints.

A part's module has ``estimated(asked) -> found``, where ``found.to_json()`` is plain data, and ``print_found(found)``. It is
imported when its flag is given, so an estimate without flags costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from archc.cli.options import BYTES, COUNT, LENGTH, POSITIVE, Command
from archc.cli.plan_options import gpu_option, split_options
from archc.cli.train_options import TRAIN_OPTIONS
from archc.spec.near import listed

if TYPE_CHECKING:
    from archc.graph.graph import Graph
    from archc.planning.hardware import Device
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

    @property
    def parallel_with_tp(self) -> Parallel | None:
        """The stated split; where it leaves out tp, that takes what the other ranks leave of the devices."""
        stated, gpus = self.parallel, self.values["gpus"]
        if stated is None or gpus is None or self.values["tp"] is not None or gpus % stated.ranks:
            return stated
        return replace(stated, tp=gpus // stated.ranks)

    @property
    def device(self) -> Device | str | None:
        """The stated device, still a name where it is one of the catalogue."""
        gpu, file = self.values["gpu"], self.values["hardware"]
        if gpu is None or file is None:
            return gpu
        from archc.planning.hardware import find_device

        return find_device(gpu, file)


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


_SHARE = click.FloatRange(0, 1, min_open=True)
_MICRO_BATCH_SIZE = click.Option(
    ["--micro-batch-size"],
    type=POSITIVE,
    metavar="N",
    help="Sequences of one pass of a training step on one copy. Default: --batch-size.",
)
_RECOMPUTE = click.Option(
    ["--recompute"],
    type=click.Choice(["none", "selective", "full"]),
    help="What a training step computes again in its backward. Default: none.",
)
_MICRO_BATCHES = click.Option(
    ["--micro-batches"],
    type=POSITIVE,
    metavar="N",
    help="Passes of a training step before the optimizer's. Default: one a stage; in --time over several ranks what makes 4 M "
    "tokens.",
)
"""Options of several parts."""

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
    Part(
        "train",
        "training",
        "Memory of training on every rank: weights, gradients, optimizer, activations, logits and loss.",
        "archc.cli.estimate_train",
        (*TRAIN_OPTIONS, _MICRO_BATCH_SIZE, _RECOMPUTE, _MICRO_BATCHES),
    ),
    Part(
        "time",
        "time",
        "Time of a prefill, a token and a training step on --gpu by a roofline: an estimate, not a measurement.",
        "archc.cli.estimate_time",
        (
            click.Option(
                ["--compute-efficiency"],
                type=_SHARE,
                metavar="PART",
                help="Part of the dense peak reached. Default: 0.7.",
            ),
            click.Option(
                ["--memory-efficiency"],
                type=_SHARE,
                metavar="PART",
                help="Part of the bandwidth reached. Default: 0.8.",
            ),
            click.Option(
                ["--link-efficiency"],
                type=_SHARE,
                metavar="PART",
                help="Part of the links' rate reached. Default: 0.8.",
            ),
            click.Option(
                ["--overlap"],
                type=click.FloatRange(0, 1),
                metavar="PART",
                help="Part of the communication hidden behind work. Default: 0.",
            ),
            click.Option(
                ["--mfu"],
                type=_SHARE,
                metavar="PART",
                help="Take a training step to reach this part of the peak, instead of the roofline's time.",
            ),
            click.Option(
                ["--tokens"], type=COUNT, metavar="COUNT", help="A budget to train on, as in 15.6T: hours and energy."
            ),
            click.Option(
                ["--flops-convention"],
                metavar="NAME",
                help="How MFU counts: archc, 6nd, kaplan, chinchilla, palm, megatron, mosaic. Default: archc.",
            ),
            _MICRO_BATCH_SIZE,
            _RECOMPUTE,
            _MICRO_BATCHES,
        ),
    ),
)
"""Order of their sections."""

_SHARED = ("gpu", "hardware", "gpus", "tp", "pp", "ep", "dp", "cp")


def part_options(function: Function) -> Function:
    """The flags, the options that parts share, and those of each."""
    for option in reversed(list(dict.fromkeys(option for part in PARTS for option in part.options))):
        _add(function, option)
    function = gpu_option(split_options(function))
    for part in reversed(PARTS):
        function = click.option(f"--{part.flag}", is_flag=True, help=part.text)(function)
    return function


def _add(function: Any, option: click.Option) -> None:
    # click collects the options of a function here, last one first, as its own decorator does.
    params: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
    params.append(option)


def _flags_of(name: str | None) -> list[str]:
    """Flags of the parts in which an option means something; none for options of every estimate."""
    return [part.flag for part in PARTS if name in _SHARED or any(option.name == name for option in part.options)]


class PartsCommand(Command):
    """A command whose help lists options under the flags that they belong to."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                flags = [f"--{flag}" for flag in _flags_of(param.name)]
                groups.setdefault(f"With {listed(flags, 'or')}" if flags else "Options", []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def asked_parts(ctx: click.Context, values: dict[str, Any]) -> list[Part]:
    """The parts whose flags are given.

    Raises:
        UsageError: an option is given without the flag that it belongs to; all such options are named.
    """
    asked = [part for part in PARTS if values[part.flag]]
    wrong: list[str] = []
    for param in ctx.command.params:
        name = param.name or ""
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        flags = _flags_of(name)
        if flags and not any(part.flag in flags for part in asked):
            wrong.append(f"{param.opts[0]} belongs to {' or '.join(f'--{flag}' for flag in flags)}")
    if wrong:
        raise click.UsageError("; ".join(wrong))
    return asked
