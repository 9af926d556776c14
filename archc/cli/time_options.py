"""Options of commands that say how long models take beside how much they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from archc.cli.options import POSITIVE, dtype_option
from archc.cli.plan_options import RANKS, gpu_option

Function = TypeVar("Function", bound=Callable[..., Any])

TIME_OPTIONS = ("gpu", "gpus", "hardware", "compute_efficiency", "memory_efficiency")
"""Names under which a command gets them, None where they are not stated."""

_SHARE = click.FloatRange(0, 1, min_open=True)


def time_options(function: Function) -> Function:
    """--gpu with --hardware, --gpus, and the shares of its figures that are taken to be reached."""
    for name, what in (("memory", "bandwidth"), ("compute", "dense peak")):
        text = f"Share of the device's {what} that is reached. Default: that of archc estimate --time."
        function = click.option(f"--{name}-efficiency", type=_SHARE, metavar="SHARE", help=text)(function)
    text = "Devices of each model, shared by tp as far as links reach, then by dp. Default: 1."
    return gpu_option(click.option("--gpus", type=RANKS, metavar="N", help=text)(function))


def cost_options(function: Function) -> Function:
    """What every model of a comparison is estimated with: batch, dtypes and devices, by the names that the library has."""
    function = time_options(function)
    text = "dtype of all caches but for recurrent states. Default: the specs'."
    function = dtype_option("--kv-cache-dtype", text=text)(function)
    function = dtype_option("--dtype", text="dtype of the weights of all. Default: the specs'.")(function)
    text = "Sequences at once."
    return click.option("--batch-size", type=POSITIVE, metavar="N", default=1, show_default=True, help=text)(function)


def roof_text(options: Any) -> str:
    """What a table says of its times; ``options`` are those of ``archc.planning.models``."""
    from archc.planning.hardware import find_device
    from archc.planning.timing.roofline import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY

    device = find_device(options.gpu, options.hardware)
    compute = options.compute_efficiency or COMPUTE_EFFICIENCY
    memory = options.memory_efficiency or MEMORY_EFFICIENCY
    return (
        f"time: an estimate by the roofline of {options.gpus or 1} x {device.title}, not a measurement; {compute:g} of the "
        f"dense peak and {memory:g} of the bandwidth are taken to be reached; a training step is one pass of the batch"
    )
