"""What charts show, as numbers: costs over the length, and parameters by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from archc.estimation.placed import Part
from archc.planning.comparison.measures import Number, measures
from archc.planning.models import Model, Options

FIRST_LENGTH_TOKENS, LAST_LENGTH_TOKENS = 1 << 10, 1 << 20
"""Lengths that a curve spans unless somebody asks for others."""

_STEPS_PER_OCTAVE = 4

MAX_GROUPS = 8
"""Kinds of parts that a bar is divided into; the smallest are one group."""

OTHERS = "others"

Quantity = Literal["cache", "flops"]


@dataclass(frozen=True, slots=True)
class Curve:
    """A cost of one model at each of the lengths, in tokens; ``step`` says of what work, empty for a cache.

    A curve whose costs are all 0 has nothing that could be drawn: a model that keeps nothing.
    """

    model: str
    step: str
    lengths: tuple[int, ...]
    values: tuple[Number, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "step": self.step,
            "lengths": list(self.lengths),
            "values": list(self.values),
        }


@dataclass(frozen=True, slots=True)
class Curves:
    """One cost of several models over the length, in ``unit`` (``B``, ``FLOPs``); ``marks`` are lengths to point out."""

    what: Quantity
    title: str
    unit: str
    curves: tuple[Curve, ...]
    marks: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "title": self.title,
            "unit": self.unit,
            "curves": [curve.to_json() for curve in self.curves],
        }


@dataclass(frozen=True, slots=True)
class Bar:
    """Parameters of one model, all of them or those that a token uses, by group of parts."""

    model: str
    is_active: bool
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Bars:
    """Parameters of several models; ``groups`` are those of each bar's counts, the largest first and ``others`` last.

    A model whose tokens use all of its parameters has one bar, the others two.
    """

    groups: tuple[str, ...]
    bars: tuple[Bar, ...]

    def to_json(self) -> dict[str, Any]:
        bars = [
            {
                "model": bar.model,
                "is_active": bar.is_active,
                "total": bar.total,
                "by_group": dict(zip(self.groups, bar.counts, strict=True)),
            }
            for bar in self.bars
        ]
        return {"what": "parameters", "unit": "parameters", "bars": bars}


def lengths_between(first: int, last: int) -> tuple[int, ...]:
    """Lengths in equal ratios, both ends included; every power of two between them is one."""
    found = {first, last}
    for octave in range(first.bit_length() - 1, last.bit_length() + 1):
        for step in range(_STEPS_PER_OCTAVE):
            length = round(2 ** (octave + step / _STEPS_PER_OCTAVE))
            if first < length < last:
                found.add(length)
    return tuple(sorted(found))


def cache_curves(models: Sequence[Model], lengths: Sequence[int], options: Options) -> Curves:
    """Bytes that the formula needs for the whole batch at each length; encoders keep nothing and have no curve."""
    curves = _curves(models, lengths, options, {"cache_bytes": ""})
    title = "cache" if options.batch_size == 1 else f"cache, batch {options.batch_size}"
    return Curves("cache", title, "B", tuple(curves))


def flops_curves(models: Sequence[Model], lengths: Sequence[int], options: Options) -> Curves:
    """FLOPs of the token at each length, and on average of a prefill's tokens, whatever the batch."""
    steps = {"decode_flops": "decode", "prefill_flops": "prefill", "forward_flops": "forward"}
    curves = [
        curve if curve.step == "decode" else replace(curve, values=_per_token(curve))
        for curve in _curves(models, lengths, replace(options, batch_size=1), steps)
    ]
    return Curves("flops", "FLOPs a token", "FLOPs", tuple(curves))


def _per_token(curve: Curve) -> tuple[Number, ...]:
    return tuple(value / length for value, length in zip(curve.values, curve.lengths, strict=True))


def _curves(models: Sequence[Model], lengths: Sequence[int], options: Options, steps: dict[str, str]) -> list[Curve]:
    found: list[Curve] = []
    for model in models:
        at = [measures(model, length, options) for length in lengths]
        for name, step in steps.items():
            if name in at[0]:
                found.append(Curve(model.label, step, tuple(lengths), tuple(costs[name].total for costs in at)))
    return found


def parameter_bars(models: Sequence[Model], options: Options) -> Bars:
    """Parameters by kind of part, as ``mixer.kda`` or ``ffn.moe``; what is small in every bar is one group."""
    found: list[tuple[str, bool, dict[str, int]]] = []
    for model in models:
        counts = model.estimate(1, options).parameters
        found.append((model.label, False, _grouped(counts.by_part)))
        if counts.active != counts.total:
            found.append((model.label, True, _grouped(counts.active_by_part)))
    # The largest share of a bar says whether a group can be seen.
    shares: dict[str, float] = {}
    for _, _, groups in found:
        total = sum(groups.values()) or 1
        for group, count in groups.items():
            shares[group] = max(shares.get(group, 0.0), count / total)
    seen = sorted(shares, key=lambda group: -shares[group])
    kept = seen if len(seen) <= MAX_GROUPS else seen[: MAX_GROUPS - 1]
    rest = len(kept) < len(seen)
    bars = [
        Bar(
            model,
            is_active,
            (
                *(groups.get(group, 0) for group in kept),
                *((sum(count for group, count in groups.items() if group not in kept),) if rest else ()),
            ),
        )
        for model, is_active, groups in found
    ]
    return Bars((*kept, *((OTHERS,) if rest else ())), tuple(bars))


def _grouped(by_part: dict[Part, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part, count in by_part.items():
        name = ".".join(part[:2])
        found[name] = found.get(name, 0) + count
    return found
