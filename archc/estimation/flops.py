"""FLOPs of a prefill, a decode step and a training step, symbolic first: a number is its formula at given sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archc.estimation.placed import Part, Placed, Placement
from archc.ir.op import Form, Pairs
from archc.ir.size import SOURCE, Dim, evaluate

PAIRS: tuple[Pairs, ...] = ("needed", "dense")
FORMS: tuple[Form, ...] = ("many", "few")

BACKWARD = 2
"""FLOPs of the backward pass over those of the forward one: a gradient of the input and one of the weight per product."""


@dataclass(slots=True, eq=False, repr=False)
class Flops:
    """Closed forms in ``batch``, ``seq`` and ``past``, and their numbers at one batch and one length.

    Keys of the dictionaries: ``prefill``, ``prefill_chunk``, ``decode``, ``train_step``, each also with ``_dense``; of a
    bidirectional stack, which keeps nothing, ``forward`` and ``train_step``. A decoder that reads an encoder has ``source``
    tokens there, all in the prefill and none in a decode step.
    """

    formulas: dict[str, Dim]
    numbers: dict[str, int]
    by_part: dict[Part, dict[str, int]]
    by_layer: dict[str, dict[str, int]]
    part_sums: dict[Part, FlopsSums]
    layer_sums: dict[str, FlopsSums]

    def formulas_by_part(self) -> dict[Part, dict[str, Dim]]:
        """``formulas`` of each part, needed pairs; made when they are asked for."""
        return {part: sums.formulas() for part, sums in self.part_sums.items()}

    def formulas_by_layer(self) -> dict[str, dict[str, Dim]]:
        """``formulas`` of the layers of each kind, needed pairs; what stands outside the layers has an empty name."""
        return {layer: sums.formulas() for layer, sums in self.layer_sums.items()}

    def to_json(self) -> dict[str, Any]:
        """The numbers, then ``formula`` as texts and ``by_part`` (needed pairs)."""
        parts = {".".join(part): numbers for part, numbers in self.by_part.items()}
        return {
            **self.numbers,
            "formula": {name: str(formula) for name, formula in self.formulas.items()},
            "by_part": parts,
        }


class FlopsSums:
    """Forward polynomials of a set of nodes, by form, apart for what comes after the last layer."""

    __slots__ = ("decodes", "layers", "readout")

    def __init__(self, *, decodes: bool) -> None:
        self.decodes = decodes
        self.layers: dict[Form, Dim] = {"many": 0, "few": 0}
        self.readout: dict[Form, Dim] = {"many": 0, "few": 0}

    def add(self, placed: Placed, form: Form, flops: Dim) -> None:
        side = self.readout if placed.is_readout else self.layers
        side[form] = side[form] + flops

    def formulas(self) -> dict[str, Dim]:
        """The quantities, symbolic."""
        many, few = self.layers["many"], self.layers["few"]
        whole = _substitute(many + self.readout["many"], {"past": 0, "memory": SOURCE})
        if not self.decodes:
            return {"forward": whole, "train_step": whole * (1 + BACKWARD)}
        chunk = many + _substitute(self.readout["many"], {"seq": 1})
        return {
            "prefill": _substitute(chunk, {"past": 0, "memory": SOURCE}),
            "prefill_chunk": _substitute(chunk, {"source": 0}),
            "decode": _substitute(few + self.readout["few"], {"seq": 1, "source": 0}),
            "train_step": whole * (1 + BACKWARD),
        }

    def numbers(self, *, batch: int, length: int, source: int) -> dict[str, int]:
        """The quantities but chunks at one batch and one length, without the detour over their formulas."""
        whole = {"batch": batch, "seq": length, "past": 0, "source": source, "memory": source}
        last = {"batch": batch, "seq": 1, "past": length - 1, "source": 0, "memory": source}
        only_last = {**whole, "seq": 1}
        many, readout = evaluate(self.layers["many"], whole), self.readout["many"]
        if not self.decodes:
            forward = many + evaluate(readout, whole)
            return {"forward": forward, "train_step": forward * (1 + BACKWARD)}
        return {
            "prefill": many + evaluate(readout, only_last),
            "decode": evaluate(self.layers["few"], last) + evaluate(self.readout["few"], last),
            "train_step": (many + evaluate(readout, whole)) * (1 + BACKWARD),
        }


def _substitute(flops: Dim, env: dict[str, Dim]) -> Dim:
    return flops if isinstance(flops, int) else flops.substitute(env)


def count_flops(placement: Placement, *, batch_size: int, max_model_len: int, source_len: int, decodes: bool) -> Flops:
    """Costs of every distinct node, times how often it runs; ``decodes`` says whether the model goes on by a cache."""
    sizes = {"batch": batch_size, "length": max_model_len, "source": source_len}
    formulas: dict[str, Dim] = {}
    numbers: dict[str, int] = {}
    parts: dict[Part, FlopsSums] = {}
    layers: dict[str, FlopsSums] = {}
    for pairs in PAIRS:
        total = FlopsSums(decodes=decodes)
        for placed in placement.nodes:
            types = [value.type for value in placed.node.inputs]
            for form in FORMS:
                flops = placed.node.op.flops(types, form, pairs)
                if flops == 0:
                    continue
                flops = flops * placed.count
                total.add(placed, form, flops)
                if pairs == "needed":
                    parts.setdefault(placed.part, FlopsSums(decodes=decodes)).add(placed, form, flops)
                    layers.setdefault(placed.layer, FlopsSums(decodes=decodes)).add(placed, form, flops)
        suffix = "" if pairs == "needed" else "_dense"
        formulas.update({f"{name}{suffix}": formula for name, formula in total.formulas().items()})
        found = total.numbers(**sizes)
        numbers.update({f"{name}{suffix}": number for name, number in found.items()})
    return Flops(
        formulas,
        numbers,
        {part: sums.numbers(**sizes) for part, sums in parts.items()},
        {layer: sums.numbers(**sizes) for layer, sums in layers.items()},
        parts,
        layers,
    )
