"""``archc estimate --time``."""

from __future__ import annotations

from typing import Any

from archc.cli.estimate_time_text import print_found
from archc.cli.plan_parts import Asked
from archc.errors import ArchcError
from archc.planning.timing.estimate import Timing, estimate_time

__all__ = ["estimated", "print_found"]

_NAMES = (
    "gpus",
    "compute_efficiency",
    "memory_efficiency",
    "link_efficiency",
    "overlap",
    "mfu",
    "tokens",
    "flops_convention",
    "recompute",
    "micro_batch_size",
    "micro_batches",
)
"""Options by the names of ``estimate_time``'s arguments; what is not stated keeps its default there."""


def estimated(asked: Asked) -> Timing:
    """Times under the options that are stated."""
    if asked.device is None:
        raise ArchcError("--time needs a device: --gpu NAME, as archc hardware lists them")
    stated: dict[str, Any] = {name: asked.values[name] for name in _NAMES if asked.values[name] is not None}
    return estimate_time(
        asked.graph,
        gpu=asked.device,
        # Where copies are stated they can't be what is left of the devices.
        parallel=asked.parallel if asked.values["dp"] is None else asked.parallel_with_tp,
        batch_size=asked.batch_size,
        max_model_len=asked.max_model_len,
        source_len=asked.source_len,
        dtype=asked.dtype,
        kv_cache_dtype=asked.kv_cache_dtype,
        **stated,
    )
