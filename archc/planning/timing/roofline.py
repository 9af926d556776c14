"""The roofline of a device: the least time that FLOPs and bytes take, and which of the two sets it.

Williams, Waterman and Patterson, "Roofline", CACM 2009. An op takes the longer of ``FLOPs / (peak x compute efficiency)`` and
``bytes / (bandwidth x memory efficiency)``; ops follow each other, so their times add up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from archc.planning.hardware import Device
from archc.planning.timing.work import Work

COMPUTE_EFFICIENCY = 0.7
"""Share of a dense peak that products reach. The best found are 0.86 on an A100, 0.80 on an H100 and 0.60 on an MI300X.

Stas Bekman, Machine Learning Engineering, table of maximum achievable matmul FLOPS; usual shapes reach less.
"""

MEMORY_EFFICIENCY = 0.8
"""Share of the bandwidth that kernels of a decode step reach; plain copies reach about 0.9."""

LINK_EFFICIENCY = 0.8
"""Share of a link's rate that large collectives reach."""


@dataclass(frozen=True, slots=True)
class Roof:
    """A device at a dtype under stated efficiencies; ``dtype`` is that of the peak, which may be wider than the model's."""

    device: Device
    dtype: str
    peak_flops_per_s: int
    compute_efficiency: float = COMPUTE_EFFICIENCY
    memory_efficiency: float = MEMORY_EFFICIENCY
    link_efficiency: float = LINK_EFFICIENCY

    @property
    def flops_per_s(self) -> float:
        """What products are taken to reach."""
        return self.peak_flops_per_s * self.compute_efficiency

    @property
    def bytes_per_s(self) -> float:
        """What the memory is taken to reach."""
        return self.device.bandwidth_bytes_per_s * self.memory_efficiency

    @property
    def ridge_flops_per_byte(self) -> float:
        """Arithmetic intensity from which on compute sets the time."""
        return self.flops_per_s / self.bytes_per_s

    def compute_s(self, work: Work) -> float:
        return work.flops / self.flops_per_s

    def memory_s(self, work: Work) -> float:
        return work.bytes / self.bytes_per_s

    def wire_s(self, count_bytes: int, ranks: int) -> float:
        """Seconds that one rank of a group sends so many bytes, over links where they join all of the group."""
        device = self.device
        is_near = ranks <= device.link_devices
        rate = device.link_bytes_per_s if is_near else device.network_bytes_per_s
        return count_bytes / (rate * self.link_efficiency)

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device.name,
            "title": self.device.title,
            "dtype": self.dtype,
            "peak_flops_per_s": self.peak_flops_per_s,
            "bandwidth_bytes_per_s": self.device.bandwidth_bytes_per_s,
            "compute_efficiency": self.compute_efficiency,
            "memory_efficiency": self.memory_efficiency,
            "link_efficiency": self.link_efficiency,
            "ridge_flops_per_byte": self.ridge_flops_per_byte,
            "source": self.device.source,
        }


@dataclass(slots=True)
class Row:
    """What the ops of one part of a model do in one step, on one rank, and how long they take."""

    name: str
    work: Work = field(default_factory=Work)
    seconds: float = 0.0
    compute_bound_s: float = 0.0

    @property
    def bound(self) -> str:
        """``compute`` or ``memory``: what sets most of the time."""
        return "compute" if self.compute_bound_s * 2 > self.seconds else "memory"

    @property
    def bound_share(self) -> float:
        """Share of the time that ``bound`` sets."""
        if not self.seconds:
            return 1.0
        share = self.compute_bound_s / self.seconds
        return share if self.bound == "compute" else 1 - share

    def add(self, work: Work, roof: Roof) -> None:
        """One op more."""
        compute_s, memory_s = roof.compute_s(work), roof.memory_s(work)
        self.work.add(work)
        self.seconds += max(compute_s, memory_s)
        self.compute_bound_s += compute_s if compute_s > memory_s else 0.0

    def join(self, other: Row) -> None:
        """Another row's ops, too."""
        self.work.add(other.work)
        self.seconds += other.seconds
        self.compute_bound_s += other.compute_bound_s

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "flops": self.work.flops,
            "bytes": self.work.bytes,
            "weight_bytes": self.work.weight_bytes,
            "activation_bytes": self.work.activation_bytes,
            "state_bytes": self.work.state_bytes,
            "flops_per_byte": self.work.flops_per_byte,
            "seconds": self.seconds,
            "bound": self.bound,
            "bound_share": self.bound_share,
        }


def merged(rows: Iterable[Row], name: str) -> Row:
    """The sum of rows."""
    total = Row(name)
    for row in rows:
        total.join(row)
    return total
