"""Results of ``estimate_training``: memory of one rank of each stage while a step runs, and what fits a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archc.ir.tape import Device as Kernels
from archc.planning.hardware import Device
from archc.planning.parallel import Parallel
from archc.planning.training.loss import LossBytes
from archc.planning.training.weights import WeightBytes

CONVENTIONS: dict[str, str] = {
    "rank": (
        "the first of each stage's ranks, which holds the most where something does not divide; all ranks of a stage are "
        "counted alike"
    ),
    "zero": (
        "as FSDP2: a tensor is cut along its first dimension into ceil(rows / ranks) rows; over dp x cp, experts under ep over "
        "the ranks that hold the same ones. 1: optimizer states and masters, 2: gradients too, 3: parameters too; under 3 the "
        "pieces that are cut are the masters, and parameters in the model's dtype exist only while they are gathered"
    ),
    "gathered": (
        "under zero 3: two layers that follow each other, the largest two, and what stands outside of layers; gradients in "
        "flight, under zero 2 and 3: one layer's, and those of another, or of what stands outside, on their way to be shared out"
    ),
    "gradients": (
        "all there while activations are most: so it is from a step's second micro-batch on, and an upper bound where there is "
        "one; a frozen weight has none"
    ),
    "activations": (
        "what autograd keeps between forward and backward of archc's own torch modules on a GPU, each storage once, weights "
        "apart; times the micro-batches that a stage has in flight; routing taken to be even"
    ),
    "recompute": (
        "selective: of each layer its inputs and what products, fused attention and archc's operators wrote; full: its inputs; "
        "in backward one layer's other tensors are there again"
    ),
    "peak": (
        "weights, gradients, optimizer and activations, logits, which a caller holds, and the larger of: the loss's backward; "
        "one layer's, with what is computed again of it and, at most, the gradients of its largest tensors. Not counted: an "
        "optimizer step's own temporaries (torch's foreach form: the moved weights once more; fused: none), workspaces of "
        "kernels, buffers of communication, the device's context, and what an allocator wastes"
    ),
}
"""Topic -> what its numbers mean."""

ROWS = (
    "parameters",
    "parameters, gathered",
    "buffers",
    "master weights",
    "gradients",
    "gradients in flight",
    "optimizer states",
    "activations",
    "one layer computed again",
    "gradients of activations",
    "logits",
    "loss, kept",
    "loss, backward",
)
"""Lines of a rank's table, ``activations`` once a layer kind."""


@dataclass(slots=True, kw_only=True)
class TrainingOptions:
    """What is trained and how. Lengths are in tokens of one sequence; a step runs ``micro_batches`` on each of dp copies.

    ``kernels`` are whose tensors autograd keeps, a GPU's or the CPU's.
    """

    dtype: str
    grad_dtype: str | None
    optimizer: str
    master_weights: bool
    zero: int
    micro_batch_size: int
    micro_batches: int
    max_model_len: int
    source_len: int | None
    recompute: str
    sequence_parallel: bool
    schedule: str
    virtual_stages: int
    loss_chunk_tokens: int | None
    activations: str = "graph"
    kernels: Kernels = "cuda"
    loss: str = "plain"

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True, eq=False, repr=False)
class RankMemory:
    """Bytes on a rank of one stage. ``in_flight``: micro-batches (passes over one run of layers, interleaved) that it keeps."""

    stage: int
    layers: int
    weights: WeightBytes
    activations: dict[str, int]
    in_flight: int
    recompute_working: int
    activation_gradients: int
    loss: LossBytes | None
    losses_in_flight: int = 1

    @property
    def activation_bytes(self) -> int:
        return sum(self.activations.values())

    @property
    def loss_saved_bytes(self) -> int:
        return 0 if self.loss is None else self.loss.saved * self.losses_in_flight

    @property
    def loss_moment_bytes(self) -> int:
        """Logits and loss when the loss's backward runs."""
        return 0 if self.loss is None else self.loss.logits + self.loss_saved_bytes + self.loss.working

    @property
    def layer_moment_bytes(self) -> int:
        """One layer computed again, gradients of its weights and activations, logits that a caller holds, and waiting losses."""
        alone = self.recompute_working + self.activation_gradients + self.weights.gradients_in_flight
        return alone + self._held_logits() + self._waiting_losses()

    def _held_logits(self) -> int:
        return 0 if self.loss is None or self.loss.is_chunked else self.loss.logits

    def _waiting_losses(self) -> int:
        return 0 if self.loss is None else self.loss.saved * (self.losses_in_flight - 1) + self.loss.waiting

    @property
    def peak_bytes(self) -> int:
        """The most that lies on the rank at once, of what is counted."""
        moment = max(self.loss_moment_bytes, self.layer_moment_bytes)
        return self.weights.resident + self.weights.gathered + self.activation_bytes + moment

    def rows(self) -> dict[str, int]:
        """Line of a table -> bytes; the lines sum to the peak."""
        at_loss = self.loss_moment_bytes >= self.layer_moment_bytes
        loss = self.loss
        found = {
            "parameters": self.weights.parameters,
            "parameters, gathered": self.weights.gathered,
            "buffers": self.weights.buffers,
            "master weights": self.weights.masters,
            "gradients": self.weights.gradients,
            "gradients in flight": 0 if at_loss else self.weights.gradients_in_flight,
            "optimizer states": self.weights.optimizer,
            **{f"activations, {name}": count_bytes for name, count_bytes in self.activations.items()},
            "one layer computed again": 0 if at_loss else self.recompute_working,
            "gradients of activations": 0 if at_loss else self.activation_gradients,
            "logits": loss.logits if at_loss and loss is not None else self._held_logits(),
            "loss, kept": self.loss_saved_bytes if at_loss else self._waiting_losses(),
            "loss, backward": loss.working if at_loss and loss is not None else 0,
        }
        return {name: count_bytes for name, count_bytes in found.items() if count_bytes}

    def to_json(self) -> dict[str, Any]:
        weights = self.weights
        return {
            "stage": self.stage,
            "layers": self.layers,
            "elements": weights.elements,
            "parameter_bytes": weights.parameters,
            "gathered_bytes": weights.gathered,
            "buffer_bytes": weights.buffers,
            "master_bytes": weights.masters,
            "gradient_bytes": weights.gradients,
            "gradient_in_flight_bytes": weights.gradients_in_flight,
            "optimizer_bytes": weights.optimizer,
            "host_bytes": weights.host,
            "in_flight": self.in_flight,
            "activation_bytes": self.activation_bytes,
            "activation_bytes_by_kind": self.activations,
            "recompute_working_bytes": self.recompute_working,
            "activation_gradient_bytes": self.activation_gradients,
            "loss": None if self.loss is None else self.loss.to_json(),
            "losses_in_flight": self.losses_in_flight,
            "loss_moment_bytes": self.loss_moment_bytes,
            "layer_moment_bytes": self.layer_moment_bytes,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(slots=True, eq=False, repr=False)
class Training:
    """Memory of training on every rank. ``left_out``: ops, by path, whose activations nobody states: counted nowhere."""

    name: str
    options: TrainingOptions
    parallel: Parallel
    stages: list[RankMemory]
    left_out: list[tuple[str, str]]
    notes: list[str]
    device: Device | None = None
    largest_micro_batch: int | None = None

    @property
    def peak_stage(self) -> RankMemory:
        """The stage whose ranks need the most."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        return self.peak_stage.peak_bytes

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, all copies together."""
        options = self.options
        return options.micro_batch_size * options.micro_batches * self.parallel.dp * options.max_model_len

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the device's memory; None without a device."""
        return None if self.device is None else self.peak_bytes <= self.device.memory_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain data; every number of bytes is an integer."""
        device = self.device
        return {
            "options": self.options.to_json(),
            "parallel": self.parallel.to_json(),
            "ranks": self.parallel.ranks,
            "tokens_per_step": self.tokens_per_step,
            "peak_bytes": self.peak_bytes,
            "peak_stage": self.peak_stage.stage,
            "stages": [stage.to_json() for stage in self.stages],
            "left_out": [{"path": path, "op": name} for path, name in self.left_out],
            "gpu": None
            if device is None
            else {
                "name": device.name,
                "memory_bytes": device.memory_bytes,
                "fits": self.fits,
                "largest_micro_batch": self.largest_micro_batch,
            },
            "notes": self.notes,
            "conventions": CONVENTIONS,
        }
