"""What can be wrong with the options of a time, collected, so that all of it is told at once."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike

from archc.errors import ArchcError, SpecError
from archc.graph.graph import Graph
from archc.planning.hardware import Device, find_device
from archc.planning.sharding import Parallel, Sharding, shard
from archc.units import DTYPE_BITS, dtype_name


def out_of_range(counts: dict[str, int | None], shares: dict[str, float | None]) -> list[str]:
    """Counts below 1 and shares that are none of a whole."""
    found = [f"{name} should be at least 1 (found {n})" for name, n in counts.items() if n is not None and n < 1]
    return found + [
        f"{name} should be above 0 and at most 1 (found {share:g})"
        for name, share in shares.items()
        if share is not None and not 0 < share <= 1
    ]


def known_dtype(option: str, text: str | None, problems: list[str]) -> str | None:
    """Torch's name of a dtype, which may be given short."""
    name = None if text is None else dtype_name(text)
    if name is not None and name not in DTYPE_BITS:
        problems.append(f"{option} {text!r} is unknown; known: {', '.join(DTYPE_BITS)}")
    return name


def known_device(gpu: str | Device, hardware: str | PathLike[str] | None, problems: list[str]) -> Device | None:
    """The device that is meant.

    Raises:
        SpecError: the file of devices has problems.
    """
    if isinstance(gpu, Device):
        return gpu
    try:
        return find_device(gpu, hardware)
    except SpecError:
        raise
    except ArchcError as error:
        problems.append(str(error))
        return None


def possible_sharding(
    graph: Graph, parallel: Parallel | None, gpus: int | None, device: Device | None, problems: list[str]
) -> Sharding | None:
    """The stated cut, with copies up to ``gpus``; else the widest tp over one set of links that the model can have."""
    if gpus is not None and gpus < 1:
        return None
    if parallel is None and gpus is not None:
        reach = min(gpus, device.link_devices if device else 1)
        found = (shard(graph, Parallel(tp=tp, dp=gpus // tp)) for tp in range(reach, 0, -1) if gpus % tp == 0)
        return next(one for one in found if not one.problems)
    parallel = parallel or Parallel()
    if gpus is not None and gpus != parallel.ranks and not parallel.problems():
        if gpus % parallel.ranks or parallel.dp > 1:
            problems.append(f"{gpus} gpus are not what {parallel} takes, {parallel.ranks}")
        else:
            parallel = replace(parallel, dp=gpus // parallel.ranks)
    sharding = shard(graph, parallel)
    problems += sharding.problems
    return sharding
