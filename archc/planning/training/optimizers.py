"""What an optimizer keeps beside the weights that it moves, to the byte, as torch.optim and bitsandbytes allocate it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from archc.errors import ArchcError
from archc.spec.near import listed, nearest
from archc.units import tensor_bytes

Shape = tuple[int, ...]

BLOCK_ELEMENTS = 256
"""Elements of an 8-bit state that share a scale: ``blocksize`` in bitsandbytes 0.50, optim/optimizer.py; older ones had 2048."""

LEAST_8BIT_ELEMENTS = 4096
"""Smaller tensors keep 32-bit states: ``min_8bit_size`` in bitsandbytes."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A weight as its optimizer sees it: one rank's ``shape`` of ``whole``, in the dtype that is moved, the master's if any.

    ``is_matrix``: a product's weight inside a layer (experts stacked in a third dimension count as many), no kernel of a
    convolution, no table of a vocabulary.
    """

    shape: Shape
    dtype: str
    is_matrix: bool = False
    whole: Shape = ()

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Kept:
    """One tensor of an optimizer's state. ``on_host``: it lies in the host's memory, whatever the weights do."""

    name: str
    shape: Shape
    dtype: str
    on_host: bool = False

    @property
    def bytes(self) -> int:
        return tensor_bytes(prod(self.shape), self.dtype)


def _step() -> Kept:
    """The count of steps, a float32 scalar a weight: on the host unless the optimizer is ``fused`` or ``capturable``."""
    return Kept("step", (), "float32", on_host=True)


def _adamw(weight: Moved) -> list[Kept]:
    return [Kept("exp_avg", weight.shape, weight.dtype), Kept("exp_avg_sq", weight.shape, weight.dtype), _step()]


def _muon(weight: Moved) -> list[Kept]:
    return [Kept("momentum_buffer", weight.shape, weight.dtype)] if weight.is_matrix else _adamw(weight)


def _adafactor(weight: Moved) -> list[Kept]:
    whole = weight.whole or weight.shape
    if len(whole) < 2:
        return [Kept("variance", weight.shape, weight.dtype), _step()]

    def factor(name: str, shape: Shape) -> Kept:
        # DTensor shards what has the gradient's shape and nothing else: every rank holds the factors of the whole weight.
        return Kept(name, weight.shape if shape == whole else shape, weight.dtype)

    return [factor("row_var", (*whole[:-1], 1)), factor("col_var", (*whole[:-2], 1, whole[-1])), _step()]


def _adamw8bit(weight: Moved) -> list[Kept]:
    if weight.elements < LEAST_8BIT_ELEMENTS:
        return [Kept("state1", weight.shape, "float32"), Kept("state2", weight.shape, "float32")]
    blocks = (-(-weight.elements // BLOCK_ELEMENTS),)
    return [
        Kept("state1", weight.shape, "int8"),
        Kept("absmax1", blocks, "float32"),
        Kept("state2", weight.shape, "int8"),
        Kept("absmax2", blocks, "float32"),
    ]


def _sgd(weight: Moved) -> list[Kept]:
    return [Kept("momentum_buffer", weight.shape, weight.dtype)]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A rule: the tensors kept for a weight, and those of 256 float32 that all weights of a device share (``tables``)."""

    name: str
    keeps: Callable[[Moved], list[Kept]]
    source: str
    tables: int = 0

    @property
    def shared_bytes(self) -> int:
        """Bytes a device holds once, for whatever weights."""
        return self.tables * tensor_bytes(256, "float32")


OPTIMIZERS: dict[str, Optimizer] = {
    each.name: each
    for each in (
        Optimizer("adamw", _adamw, "torch.optim.AdamW: two moments in the dtype of the weight that is moved"),
        Optimizer(
            "muon",
            _muon,
            "torch.optim.Muon (one momentum) for matrices inside layers, experts one matrix each; torch.optim.AdamW for the "
            "others: embedding, head, norms, biases, convolutions, decays (arXiv 2502.16982)",
        ),
        Optimizer(
            "adafactor",
            _adafactor,
            "torch.optim.Adafactor (arXiv 1804.04235): a row and a column of factors a matrix, a variance an element of others",
        ),
        Optimizer(
            "adamw8bit",
            _adamw8bit,
            "bitsandbytes.optim.AdamW8bit (arXiv 2110.02861): two moments of a byte, a float32 a block of 256; float32 below "
            "4,096 elements",
            tables=2,
        ),
        Optimizer("sgd", _sgd, "torch.optim.SGD with momentum: one buffer"),
    )
}
"""Name -> rule."""


def optimizer_named(name: str) -> Optimizer:
    """The rule of a name.

    Raises:
        ArchcError: there is none; the nearest one is named.
    """
    if name not in OPTIMIZERS:
        near = nearest(name, OPTIMIZERS)
        hint = f". Did you mean {near}?" if near else ""
        raise ArchcError(f"optimizer: {name!r} is unknown; known: {listed(OPTIMIZERS)}{hint}")
    return OPTIMIZERS[name]
