"""What a comparison compares: each quantity of an estimate with the parts of the model that it is the sum of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from archc.estimation.cache import CacheKind
from archc.estimation.estimate import Estimate
from archc.estimation.placed import Part, place
from archc.graph.graph import Graph
from archc.planning.models import Model, Options
from archc.planning.timing.estimate import Timing

Number = int | float

STEP_TITLES = {
    "forward": "forward FLOPs",
    "prefill": "prefill FLOPs",
    "decode": "decode FLOPs",
    "train_step": "training step FLOPs",
}
"""Step of an estimate -> how its work is called."""

TIME_TITLES = {
    "forward": "forward time",
    "prefill": "prefill time",
    "decode": "decode time",
    "train_step": "training step time",
}
"""Step -> how its time is called, which is an estimate by the roofline."""


MEASURES = (
    "parameters",
    "active_parameters",
    "mtp_parameters",
    "weight_bytes",
    "cache_bytes_per_token",
    "cache_bytes_per_token_below_windows",
    "cache_bytes_per_source_token",
    "state_bytes_per_sequence",
    "cache_bytes",
    *(f"{step}_flops" for step in STEP_TITLES),
    *(f"{step}_s" for step in TIME_TITLES),
)
"""Names of all quantities, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity: ``by_part`` sums to ``total``. ``name`` ends in its unit, which is ``parameters``, ``B``, ``FLOPs`` or ``s``.

    A quantity that depends on the length has ``is_at_length``; the others are a model's whatever is asked.
    """

    name: str
    title: str
    unit: str
    total: Number
    by_part: dict[Part, Number] = field(default_factory=dict[Part, Number])
    is_at_length: bool = False


def measures(model: Model, length: int, options: Options) -> dict[str, Measure]:
    """Every quantity of a model at a length in tokens, by its name, in the order in which they are shown.

    Raises:
        ArchcError: an option is none for this model.
    """
    timing = model.time(length, options)
    found = [*_measures(model.estimate(length, options)), *(() if timing is None else _times(timing))]
    return {measure.name: measure for measure in found}


def _measures(found: Estimate) -> Iterator[Measure]:
    counts, weights = found.parameters, found.weights
    yield Measure("parameters", "parameters", "parameters", counts.total, {**counts.by_part})
    yield Measure("active_parameters", "active a token", "parameters", counts.active, {**counts.active_by_part})
    yield Measure("mtp_parameters", "mtp layers, apart", "parameters", counts.mtp, {("mtp",): counts.mtp})
    yield Measure("weight_bytes", "weights", "B", weights.bytes, {**weights.by_part})
    if "decode" in found.flops.numbers:
        yield from _cache(found)
    for step, title in STEP_TITLES.items():
        if step in found.flops.numbers:
            parts: dict[Part, Number] = {
                part: numbers[step] for part, numbers in found.flops.by_part.items() if numbers[step]
            }
            total = found.flops.numbers[step]
            yield Measure(f"{step}_flops", title, "FLOPs", total, parts, is_at_length=True)


def _cache(found: Estimate) -> Iterator[Measure]:
    rows: list[tuple[str, str, Callable[[CacheKind], int]]] = [
        ("cache_bytes_per_token", "cache a token", lambda kind: kind.bytes_per_token),
        ("cache_bytes_per_token_below_windows", "while windows fill", lambda kind: kind.bytes_per_token_below_windows),
        ("cache_bytes_per_source_token", "cache a token of the encoder", lambda kind: kind.bytes_per_source_token),
        ("state_bytes_per_sequence", "state a sequence", _state_bytes),
    ]
    for name, title, value in rows:
        parts: dict[Part, Number] = {kind.part: value(kind) for kind in found.cache.by_kind if value(kind)}
        yield Measure(name, title, "B", sum(parts.values()), parts)
    used: dict[Part, Number] = {kind.part: kind.used_bytes for kind in found.cache.by_kind}
    yield Measure("cache_bytes", "cache, whole batch", "B", found.cache.used_bytes, used, is_at_length=True)


def _times(found: Timing) -> Iterator[Measure]:
    for name, title in TIME_TITLES.items():
        if name in found.steps:
            step = found.steps[name]
            passes = found.micro_batches if name == "train_step" else 1
            parts: dict[Part, Number] = {tuple(row.name.split(".")): row.seconds * passes for row in step.by_part}
            parts[("optimizer",)] = step.optimizer_s
            rest_s = step.seconds - sum(parts.values())
            # Whether ranks wait for each other is no matter of a part; what is left of sums of floats is nothing.
            parts[("communication",)] = rest_s if step.communication_s else 0.0
            kept = {part: seconds for part, seconds in parts.items() if seconds}
            yield Measure(f"{name}_s", title, "s", step.seconds, kept, is_at_length=True)


def _state_bytes(kind: CacheKind) -> int:
    return kind.recurrent_bytes_per_sequence + kind.convolution_bytes_per_sequence


def layers_by_part(graph: Graph) -> dict[Part, int]:
    """Layers that have a mixer or ffn, by ``(family, name)``; what is not in the layers is left out."""
    placement = place(graph)
    labels: dict[Part, set[str]] = {}
    for placed in placement.nodes:
        if placed.layer and len(placed.part) > 1:
            labels.setdefault(placed.part[:2], set()).add(placed.layer)
    return {part: sum(placement.layers[label] for label in found) for part, found in labels.items()}
