"""What training on a number of tokens takes: time, device hours, energy, and how well the devices are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archc.planning.timing.flop_conventions import ModelFlops
from archc.planning.timing.roofline import Roof

PUE = 1.0
"""Power of a building over that of its devices. 1 counts the devices alone, at their limit all the time."""

HOUR_S = 3600


@dataclass(slots=True, eq=False, repr=False)
class Budget:
    """Training at one rate. Without ``tokens`` the totals are None; energy is None, too, where no power is known.

    ``model_flops_utilization`` (MFU) counts no repeated work, ``hardware_flops_utilization`` (HFU) does; both are of the
    device's dense peak, by the FLOPs of ``convention``.
    """

    model: ModelFlops
    gpus: int
    tokens_per_s: float
    model_flops_utilization: float
    hardware_flops_utilization: float
    tokens: int | None = None
    total_flops: float | None = None
    seconds: float | None = None
    gpu_hours: float | None = None
    energy_kwh: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **self.model.to_json(),
            "gpus": self.gpus,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s / self.gpus,
            "model_flops_utilization": self.model_flops_utilization,
            "hardware_flops_utilization": self.hardware_flops_utilization,
            "tokens": self.tokens,
            "total_flops": self.total_flops,
            "seconds": self.seconds,
            "gpu_hours": self.gpu_hours,
            "energy_kwh": self.energy_kwh,
            "pue": PUE,
        }


def spend(
    tokens_per_s: float, model: ModelFlops, roof: Roof, gpus: int, recompute: str = "none", tokens: int | None = None
) -> Budget:
    """The budget of ``tokens`` at so many a second on all of ``gpus`` devices."""
    peak = roof.peak_flops_per_s * gpus
    mfu = model.per_token * tokens_per_s / peak
    hfu = mfu * model.hardware(recompute) / model.training
    found = Budget(model, gpus, tokens_per_s, mfu, hfu, tokens)
    if tokens is not None:
        found.total_flops = model.per_token * tokens
        found.seconds = tokens / tokens_per_s
        found.gpu_hours = found.seconds * gpus / HOUR_S
        if roof.device.power_w is not None:
            found.energy_kwh = found.gpu_hours * roof.device.power_w / 1000 * PUE
    return found


def utilization(model: ModelFlops, roof: Roof, *, tokens: int, gpu_hours: float) -> float:
    """The MFU that a published number of device hours for so many tokens comes to."""
    return model.per_token * tokens / (gpu_hours * HOUR_S * roof.peak_flops_per_s)
