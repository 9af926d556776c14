"""The kernels that a release of onnxruntime registers, and where they want their inputs, as shipped beside this file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from archc.errors import ArchcError

RELEASE = "1.31.1"
"""The release of onnxruntime that the tables were read from."""
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
SHORT = {"cuda": CUDA, "cpu": CPU}
"""The providers that can be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One op's kernels for a range of schema versions.

    Attributes:
        lowest, highest: versions of the schema; None means the schema of exactly ``lowest``, until a newer one exists.
        types: alternatives, each a type variable (or a formal's name) -> the types that it may have.
        host_in, host_out: inputs and outputs, by their number, that lie in the host's memory.
    """

    lowest: int
    highest: int | None
    types: tuple[Mapping[str, frozenset[str]], ...]
    host_in: frozenset[int]
    host_out: frozenset[int]

    def serves(self, since: int) -> bool:
        """Whether it is registered for the schema of this version."""
        return since == self.lowest or (self.highest is not None and self.lowest <= since <= self.highest)


class Kernels:
    """A provider's registry."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        sets = [frozenset(types.split()) for types in data["sets"]]
        self.release: str = data["onnxruntime"]
        self._ops: dict[tuple[str, str], tuple[Kernel, ...]] = {
            (domain, op): tuple(_kernel(entry, sets) for entry in entries)
            for domain, ops in data["kernels"].items()
            for op, entries in ops.items()
        }

    def of(self, domain: str, op: str) -> tuple[Kernel, ...]:
        """All kernels of an op."""
        return self._ops.get((domain, op), ())

    def find(self, domain: str, op: str, since: int, types: Mapping[str, str | None]) -> Kernel | None:
        """The kernel for a node: ``types`` has the type of each type variable and of each formal, None where it is not known."""
        for kernel in self.of(domain, op):
            if kernel.serves(since) and any(_fits(allowed, types) for allowed in kernel.types):
                return kernel
        return None

    def objection(self, domain: str, op: str, since: int, types: Mapping[str, str | None]) -> str:
        """Why no kernel was found for a node, in words."""
        kernels = self.of(domain, op)
        if not kernels:
            return "no kernel is registered for it"
        serving = [kernel for kernel in kernels if kernel.serves(since)]
        if not serving:
            ranges = (f"{k.lowest}-{k.highest}" if k.highest else str(k.lowest) for k in kernels)
            return f"kernels are registered for its schemas {', '.join(ranges)}, none for {since}"
        alternatives = [allowed for kernel in serving for allowed in kernel.types]
        lines: list[str] = []
        for name in sorted({name for allowed in alternatives for name in allowed}):
            kinds = frozenset[str]().union(*(allowed.get(name, ()) for allowed in alternatives))
            if (found := types.get(name)) is not None and found not in kinds:
                lines.append(f"{name} is {found}, and kernels take {', '.join(sorted(kinds))}")
        return "; ".join(lines) or "no kernel takes its types together"


def _fits(allowed: Mapping[str, frozenset[str]], types: Mapping[str, str | None]) -> bool:
    # A variable that no argument of the node has, or whose type is not known, decides nothing.
    return all((found := types.get(name)) is None or found in kinds for name, kinds in allowed.items())


def _kernel(entry: Mapping[str, Any], sets: Sequence[frozenset[str]]) -> Kernel:
    return Kernel(
        lowest=entry["from"],
        highest=entry["to"],
        types=tuple({name: sets[index] for name, index in types.items()} for types in entry["types"]),
        host_in=frozenset(entry.get("host_in", ())),
        host_out=frozenset(entry.get("host_out", ())),
    )


@cache
def kernels(provider: str) -> Kernels:
    """The registry of ``cuda`` or ``cpu``.

    Raises:
        ArchcError: there is no table for the provider.
    """
    if provider not in SHORT:
        raise ArchcError(f"no table of kernels for the provider {provider}; known: {', '.join(SHORT)}")
    return Kernels(load(f"{provider}_kernels-{RELEASE}.json"))


@cache
def load(name: str) -> Any:
    """A table of the folder ``data``."""
    return json.loads((files("archc_exporters.onnx.placement") / "data" / name).read_text("utf-8"))
