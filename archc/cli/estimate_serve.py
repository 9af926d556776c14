"""``archc estimate --serve``."""

from __future__ import annotations

from typing import Any

from archc.cli.estimate_serve_text import print_found
from archc.cli.plan_parts import Asked
from archc.planning.serving.estimate import estimate_serving
from archc.planning.serving.memory import Serving

__all__ = ["estimated", "print_found"]

_NAMES = {
    "gpus": "gpus",
    "prefill_tokens": "prefill_tokens",
    "prefix_caching": "prefix_caching",
    "shared_prefix": "prefix_tokens",
    "mamba_block_size": "state_block_tokens",
    "workspace": "workspace_bytes",
    "overhead": "overhead_bytes",
    "gpu_memory_utilization": "memory_utilization",
    "warn_share": "warn_share",
}
"""Option -> argument of ``estimate_serving``; what is not stated keeps its default there."""


def estimated(asked: Asked) -> Serving:
    """Memory of serving under the options that are stated."""
    stated: dict[str, Any] = {
        argument: asked.values[option] for option, argument in _NAMES.items() if asked.values[option] is not None
    }
    if asked.device is not None:
        stated["gpu"] = asked.device
    return estimate_serving(
        asked.graph,
        batch_size=asked.batch_size,
        max_model_len=asked.max_model_len,
        source_len=asked.source_len,
        dtype=asked.dtype,
        kv_cache_dtype=asked.kv_cache_dtype,
        block_size=asked.block_size,
        parallel=asked.parallel_with_tp,
        **stated,
    )
