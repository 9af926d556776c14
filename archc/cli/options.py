"""What commands share: their options, the class that turns errors into exit codes, and printing of JSON."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from archc.errors import ArchcError, CheckFailedError, MissingExtraError, Problem, SpecError
from archc.units import DTYPE_BITS, SHORT_DTYPES, dtype_name, parse_bytes, parse_count, parse_length

Function = TypeVar("Function", bound=Callable[..., Any])

POSITIVE = click.IntRange(min=1, max=1 << 40)
"""A count from the command line: more than a machine holds, and few enough digits to print every product."""


class Number(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]: no older click has any
    """A whole number as a parser of ``archc.units`` reads it, several of them between commas where ``many``."""

    def __init__(self, name: str, parse: Callable[[str], int], *, many: bool = False) -> None:
        self.name, self.parse, self.many = name, parse, many

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(map(self.parse, value.split(","))) if self.many else self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


LENGTH = Number("tokens", parse_length)
"""Tokens: ``128k`` is 131,072, ``1M`` is 1,048,576."""

LENGTHS = Number("lengths", parse_length, many=True)
"""Tokens between commas, as in ``4k,128k,1M``."""

BYTES = Number("bytes", parse_bytes)
"""Bytes: ``2GB`` is 2 x 10^9, ``2GiB`` is 2^31."""

COUNT = Number("count", parse_count)
"""Parameters, tokens of a budget: ``7B`` is 7 x 10^9, ``15.6T`` is 15.6 x 10^12."""

EXIT_CHECK_FAILED = 1
EXIT_PROBLEMS = 2


class _Ends(click.Command):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ArchcError as error:
            if ctx.params.get("as_json"):
                print_json({"problems": [problem.to_json() for problem in problems_of(error)]})
            print_error(error)
            ctx.exit(EXIT_CHECK_FAILED if isinstance(error, CheckFailedError) else EXIT_PROBLEMS)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise BrokenPipeError from error
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            click.echo(f"archc: {what}", err=True)
            ctx.exit(EXIT_PROBLEMS)


class Command(_Ends):
    """A command whose errors of the user end without a traceback: a failed check in 1, every other in 2."""


class Group(_Ends, click.Group):
    """A command with commands of its own, whose errors end alike."""


def problems_of(error: ArchcError) -> tuple[Problem, ...]:
    """The problems that an error carries, or itself as one."""
    return error.problems if isinstance(error, SpecError) else (Problem(message=str(error), code="error"),)


def print_error(error: ArchcError) -> None:
    """The error on stderr: one line, and one more for each problem of a spec."""
    if not isinstance(error, SpecError):
        click.echo(f"archc: {error}", err=True)
        return
    count = len(error.problems)
    where = f" in {error.file}" if error.file else ""
    click.echo(f"archc: {count} problem{'s' if count != 1 else ''}{where}", err=True)
    for problem in error.problems:
        click.echo(f"  {problem}", err=True)


def print_json(data: Any) -> None:
    """Data for programs, on stdout."""
    import json

    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def require_extra(extra: str, modules: tuple[str, ...], what: str) -> None:
    """Say what to install before an import fails halfway.

    Raises:
        MissingExtraError: one of the modules is not installed.
    """
    from importlib.util import find_spec

    if any(find_spec(module) is None for module in modules):
        raise MissingExtraError(extra, what)


def stdout_is_terminal() -> bool:
    """Whether a person reads stdout directly; only then is rich worth its import."""
    return sys.stdout.isatty()


def spec_argument(function: Function) -> Function:
    """SPEC, a file or a shipped name."""
    return click.argument("spec", metavar="SPEC")(function)


def set_option(function: Function) -> Function:
    """--set, changes to the spec."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="PATH=VALUE",
        help="Change a value of the spec, as in stack.num_layers=7. Can be repeated.",
    )(function)


def json_option(function: Function) -> Function:
    """--json, data instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print data for programs instead of text.")(function)


def dtype_option(
    flag: str, *, text: str, allowed: tuple[str, ...] = tuple(DTYPE_BITS), default: str | None = None
) -> Callable[[Function], Function]:
    """An option for a dtype by torch's name or its short form; the command gets torch's name."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is None:
            return None
        full = dtype_name(value)
        if full not in allowed:
            short = [form for form, name in SHORT_DTYPES.items() if name in allowed]
            raise click.BadParameter(f"{value!r} is no dtype here; known: {', '.join((*allowed, *short))}")
        return full

    return click.option(flag, metavar="DTYPE", callback=check, default=default, show_default=True, help=text)


def seed_option(function: Function) -> Function:
    """--seed of random weights."""
    return click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random weights.")(function)


def provider_option(function: Function) -> Function:
    """--provider, where an exported folder runs."""
    return click.option(
        "--provider",
        type=click.Choice(["cpu", "cuda"]),
        help="Where it runs. Default: cuda where the file was made for it and a device is there, else cpu.",
    )(function)


def threads_option(function: Function) -> Function:
    """--threads of onnxruntime."""
    return click.option(
        "--threads",
        type=click.IntRange(min=0, max=4096),
        metavar="N",
        default=0,
        show_default=True,
        help="Threads of an op; 0 lets onnxruntime choose.",
    )(function)


def max_model_len_option(function: Function) -> Function:
    """--max-model-len in tokens."""
    return click.option(
        "--max-model-len",
        type=LENGTH,
        metavar="TOKENS",
        help="Length of a sequence, as in 4096 or 128k (131,072). Default: the spec's max_position_embeddings, or 4096.",
    )(function)
