"""Options of ``archc export`` that belong together: integer weights, rounded caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from archc.cli.options import dtype_option

Function = Callable[..., Any]

_OPTIONS = (
    dtype_option(
        "--kv-cache-dtype",
        text="dtype of keys and values, whatever the spec's cache policies say: int8, int4, fp8 (CUDA only), or --dtype's.",
        allowed=("int8", "int4", "float8_e4m3fn", "float32", "float16", "bfloat16"),
    ),
    click.option(
        "--calibration",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Token ids for the steps of int8 and int4 caches: .npy, or a JSON list a line. Default: random ids.",
    ),
    click.option(
        "--quant",
        type=click.Choice(["int4", "int8"]),
        help="Weights of products, experts and the head as integers; the report says what that costs the logits.",
    ),
    click.option(
        "--quant-block-size",
        type=click.Choice(["16", "32", "64", "128"]),
        default="32",
        show_default=True,
        help="Inputs that share a scale. Fewer are closer to the float weights and take more bytes.",
    ),
    click.option(
        "--quant-zero-points",
        is_flag=True,
        help="A zero point for each block, closer where weights don't lie around 0. Default: symmetric blocks.",
    ),
    click.option(
        "--quant-embedding/--no-quant-embedding",
        default=None,
        help="Also the token table. Default: only where the head reads the same one; a token reads one row of it.",
    ),
    click.option(
        "--quant-head/--no-quant-head",
        default=True,
        show_default=True,
        help="Also the matrix that makes logits, of which every token reads all.",
    ),
)


def quantization_options(function: Function) -> Function:
    """``--kv-cache-dtype`` and ``--quant``, and what belongs to them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
