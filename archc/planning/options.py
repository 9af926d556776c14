"""What can be wrong with the options of a plan, collected, so that all of it is told at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from os import PathLike

from archc.errors import ArchcError, SpecError
from archc.graph.graph import Graph
from archc.planning.hardware import Device, find_device
from archc.planning.parallel import Parallel
from archc.spec.near import listed, nearest
from archc.units import DTYPE_BITS, dtype_name


def below_one(counts: Mapping[str, int | None]) -> list[str]:
    """Counts that are stated and below 1."""
    return [f"{name} should be at least 1 (found {n})" for name, n in counts.items() if n is not None and n < 1]


def no_share(shares: Mapping[str, float | None]) -> list[str]:
    """Shares that are stated and none of a whole."""
    return [
        f"{name} should be above 0 and at most 1 (found {share:g})"
        for name, share in shares.items()
        if share is not None and not 0 < share <= 1
    ]


def unread_source(graph: Graph, source_len: int | None) -> list[str]:
    """Tokens of an encoder that nothing reads."""
    if source_len is None or graph.reads_encoder:
        return []
    return [f"source_len: {graph.name} has no encoder that a decoder reads"]


def unknown_word(option: str, word: str, known: Collection[str]) -> list[str]:
    """A word that is none of those that an option takes, with the nearest."""
    if word in known:
        return []
    near = nearest(word, known)
    return [f"{option}: {word[:40]!r} is unknown; known: {listed(known)}" + (f". Did you mean {near}?" if near else "")]


def known_dtype(
    option: str, text: str | None, problems: list[str], among: Collection[str] = tuple(DTYPE_BITS)
) -> str | None:
    """Torch's name of a dtype, which may be given short; None where it is not stated or none of ``among``."""
    name = None if text is None else dtype_name(text)
    if name is None or name in among:
        return name
    why = "is not taken here" if name in DTYPE_BITS else "is unknown"
    problems.append(f"{option} {text!r} {why}; known: {', '.join(among)}")
    return None


def known_device(
    gpu: str | Device | None, problems: list[str], hardware: str | PathLike[str] | None = None
) -> Device | None:
    """The device that is meant, of the catalogue or of the file ``hardware``.

    Raises:
        SpecError: the file of devices has problems.
    """
    if gpu is None or isinstance(gpu, Device):
        return gpu
    try:
        return find_device(gpu, hardware)
    except SpecError:
        raise
    except ArchcError as error:
        problems.append(str(error))
        return None


def with_copies(parallel: Parallel, gpus: int | None, problems: list[str]) -> Parallel:
    """The split with as many copies (dp) as the devices hold, where it states none."""
    if gpus is None or gpus < 1 or gpus == parallel.ranks or parallel.problems():
        return parallel
    if parallel.dp == 1 and gpus % parallel.ranks == 0:
        return replace(parallel, dp=gpus // parallel.ranks)
    problems.append(f"{gpus:,} gpus are not what {parallel} takes, {parallel.ranks:,}")
    return parallel
