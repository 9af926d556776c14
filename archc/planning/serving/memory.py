"""Results of ``estimate_serving``: memory of each rank, and what fits a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from archc.planning.hardware import Device
from archc.planning.parallel import Parallel
from archc.planning.serving.paged import Pages, StateMode
from archc.planning.serving.rank_cache import KindCache
from archc.planning.serving.workspace import Workspace


@dataclass(slots=True, kw_only=True)
class ServingOptions:
    """What is served: ``batch_size`` sequences of ``max_model_len`` tokens, over all dp copies, and by what runtime.

    ``prefix_tokens`` at the beginning of all sequences are the same. ``state_mode``: see ``archc.planning.serving.paged``.
    """

    batch_size: int
    max_model_len: int
    source_len: int | None
    dtype: str
    kv_cache_dtype: str | None
    block_size_tokens: int
    prefill_tokens: int
    prefix_tokens: int
    state_mode: StateMode
    state_block_tokens: int | None
    workspace_bytes: int | None
    overhead_bytes: int
    memory_utilization: float
    warn_share: float

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True, eq=False, repr=False)
class StageMemory:
    """Bytes on each rank of one stage, at the options' batch and length.

    ``used_bytes``: what the cache's formulas need; ``allocated_bytes``: tensors of archc's own runtimes; ``paged_bytes``: blocks
    of a paged one; ``unmanaged_bytes``: the same where every layer keeps every token (None where some layer keeps no rows).
    """

    index: int
    layers: int
    weight_bytes: int
    workspace: Workspace | None
    workspace_bytes: int
    overhead_bytes: int
    used_bytes: int
    allocated_bytes: int
    paged_bytes: int
    unmanaged_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """Everything, under a paged runtime."""
        return self.weight_bytes + self.workspace_bytes + self.overhead_bytes + self.paged_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.index,
            "layers": self.layers,
            "weight_bytes": self.weight_bytes,
            "workspace_bytes": self.workspace_bytes,
            "workspace": None if self.workspace is None else self.workspace.to_json(),
            "overhead_bytes": self.overhead_bytes,
            "cache_used_bytes": self.used_bytes,
            "cache_allocated_bytes": self.allocated_bytes,
            "cache_paged_bytes": self.paged_bytes,
            "cache_paged_bytes_all_full": self.unmanaged_bytes,
            "total_bytes": self.total_bytes,
        }


@dataclass(slots=True, eq=False, repr=False)
class Fit:
    """What fits under one runtime. A number is None where nothing bounds it, and 0 where not even one fits."""

    max_batch: int | None
    max_length_tokens: int | None
    limit: str

    def to_json(self) -> dict[str, Any]:
        return {"max_batch": self.max_batch, "max_length_tokens": self.max_length_tokens, "limit": self.limit}


@dataclass(slots=True, eq=False, repr=False)
class Pool:
    """Blocks that a device has room for beside everything else, at the options' batch.

    ``least_request_share``: the part of it that a request of one token takes. ``concurrency``: requests of full length at once,
    of one model copy, each with room for the tokens that are read at once: what vLLM prints when it starts.
    """

    bytes: int
    blocks: int
    least_request_blocks: int
    least_request_bytes: int
    least_request_share: float
    concurrency: float

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True, eq=False, repr=False)
class Serving:
    """All of ``archc estimate --serve``. Names of quantities end in their unit; ``to_json`` has them as plain data."""

    name: str
    options: ServingOptions
    parallel: Parallel
    gpus: int
    device: Device | None
    kinds: list[KindCache]
    stages: list[StageMemory]
    pages: Pages
    pool: Pool | None
    fits: dict[str, Fit]
    replicated: dict[str, list[str]]
    notes: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])

    @property
    def worst(self) -> StageMemory:
        """The stage whose ranks need most."""
        return max(self.stages, key=lambda stage: stage.total_bytes)

    def total(self, quantity: str) -> int:
        """Sum of one quantity (a field of ``StageMemory``) over all ranks."""
        ranks = self.parallel.stage_ranks
        return sum(getattr(stage, quantity) for stage in self.stages) * ranks

    def to_json(self) -> dict[str, Any]:
        quantities = (
            "weight_bytes",
            "workspace_bytes",
            "overhead_bytes",
            "used_bytes",
            "allocated_bytes",
            "paged_bytes",
            "total_bytes",
        )
        return {
            "options": self.options.to_json(),
            "parallel": self.parallel.to_json(),
            "gpus": self.gpus,
            "device": None if self.device is None else self.device.name,
            "device_memory_bytes": None if self.device is None else self.device.memory_bytes,
            "cache_by_kind": [kind.to_json() for kind in self.kinds],
            "per_rank": [stage.to_json() for stage in self.stages],
            "all_ranks": {quantity: self.total(quantity) for quantity in quantities},
            "paged": self.pages.to_json(),
            "pool": None if self.pool is None else self.pool.to_json(),
            "fits": {name: fit.to_json() for name, fit in self.fits.items()},
            "replicated": self.replicated,
            "notes": self.notes,
            "warnings": self.warnings,
        }
