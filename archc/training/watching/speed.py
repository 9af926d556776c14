"""How fast a run is: tokens and FLOPs a second, and the share of the devices' peak (MFU, arXiv 2204.02311, appendix B)."""

from __future__ import annotations

from dataclasses import dataclass

from archc.errors import ArchcError
from archc.graph.graph import Graph
from archc.planning.hardware import find_device
from archc.planning.timing.flop_conventions import training_flops


def step_flops(graph: Graph, *, seq_len: int, batch_size: int, source_len: int | None = None) -> int:
    """FLOPs of an optimizer step as the estimate counts them: forward and twice as much backward, needed pairs, nothing twice."""
    return training_flops(graph, length=seq_len, source_len=source_len).training * batch_size


def device_peak_flops_per_s(name: str, dtype: str) -> float | None:
    """The dense peak of a device in a dtype by its name in the catalogue or torch's name of it; None where it is unknown."""
    try:
        return float(find_device(name).peak(dtype)[0])
    except ArchcError:
        return None


@dataclass(frozen=True, slots=True)
class Speed:
    """``flops_per_step`` of all ranks together; ``peak_flops_per_s`` of all ranks, None where it is unknown."""

    flops_per_step: int
    peak_flops_per_s: float | None = None

    def of(self, *, tokens: int, step_s: float) -> dict[str, float | int | None]:
        """The entries of a step's record: so many tokens of all ranks in so many seconds."""
        flops_per_s = self.flops_per_step / step_s
        found: dict[str, float | int | None] = {"tokens_per_s": tokens / step_s, "flops_per_s": flops_per_s}
        if self.peak_flops_per_s is not None:
            found["mfu"] = flops_per_s / self.peak_flops_per_s
        return found
