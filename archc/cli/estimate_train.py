"""``archc estimate --train``."""

from __future__ import annotations

from typing import Any

from archc.cli.estimate_train_text import print_found
from archc.cli.plan_parts import Asked
from archc.planning.training.estimate import estimate_training
from archc.planning.training.memory import Training

__all__ = ["estimated", "print_found"]

_NAMES = (
    "gpus",
    "optimizer",
    "master_weights",
    "grad_dtype",
    "zero",
    "sequence_parallel",
    "micro_batch_size",
    "micro_batches",
    "recompute",
    "schedule",
    "virtual_stages",
    "loss",
    "loss_chunk",
    "activations",
)
"""Options by the names of ``estimate_training``'s arguments; what is not stated keeps its default there."""


def estimated(asked: Asked) -> Training:
    """Memory of training under the options that are stated."""
    stated: dict[str, Any] = {"micro_batch_size": asked.batch_size}
    stated |= {name: asked.values[name] for name in _NAMES if asked.values[name] is not None}
    return estimate_training(
        asked.graph,
        parallel=asked.parallel,
        max_model_len=asked.max_model_len,
        source_len=asked.source_len,
        dtype=asked.dtype,
        gpu=asked.device,
        **stated,
    )
