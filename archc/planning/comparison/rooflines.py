"""What a roofline chart shows: the roof of a device, and where the parts of a model stand under it in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archc.errors import ArchcError
from archc.planning.models import Model, Options
from archc.planning.timing.roofline import Roof


@dataclass(frozen=True, slots=True)
class Point:
    """A part of a model in one step: FLOPs for each byte that it moves, and the FLOP/s that it is taken to reach."""

    part: str
    step: str
    flops_per_byte: float
    flops_per_s: float
    bound: str
    share: float
    """Of the step's work time."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class RooflineChart:
    """One model at one batch and length, in tokens, on one rank of a device; an estimate, not a measurement."""

    model: str
    length: int
    batch_size: int
    roof: Roof
    points: tuple[Point, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "what": "roofline",
            "model": self.model,
            "length": self.length,
            "batch_size": self.batch_size,
            "is_measurement": False,
            "roof": self.roof.to_json(),
            "points": [point.to_json() for point in self.points],
        }


def roofline_charts(models: Sequence[Model], length: int, options: Options) -> list[RooflineChart]:
    """A chart a model: prefill and decode, or the forward pass of an encoder, by part.

    Raises:
        ArchcError: the options name no device.
    """
    if options.gpu is None:
        raise ArchcError("roofline: a chart of it needs a device, gpu")
    charts: list[RooflineChart] = []
    for model in models:
        timing = model.time(length, options)
        assert timing is not None
        points = [
            Point(
                row.name,
                name,
                row.work.flops_per_byte,
                row.work.flops / row.seconds,
                row.bound,
                row.seconds / step.whole.seconds,
            )
            for name, step in timing.steps.items()
            if name != "train_step"
            for row in step.by_part
            if row.work.flops and row.work.bytes
        ]
        charts.append(RooflineChart(model.label, length, options.batch_size, timing.roof, tuple(points)))
    return charts
