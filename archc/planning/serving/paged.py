"""Cache under a runtime that gives out blocks of one size from one pool: vLLM's rules, functions named after those there.

Read in vLLM's main branch of 2026: ``vllm/v1/kv_cache_interface.py`` (pages of a layer), ``vllm/v1/core/kv_cache_utils.py`` (one
page size, groups, the pool), ``vllm/platforms/interface.py`` (``_align_hybrid_block_size``) and
``single_type_kv_cache_manager.py`` (blocks of a request). A block is ``block_tokens`` tokens of every layer of a group. All
groups take theirs from one pool, so a block of any takes the same bytes on a rank: a page times the layers of the largest group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, lcm
from typing import Any, Literal

CacheType = Literal["full", "sliding", "chunked", "state", "source"]
StateMode = Literal["none", "align", "all"]
"""vLLM's ``mamba_cache_mode``: one state a sequence; one more at the last block boundary; one a block."""

GROUP_PADDING = Fraction(3, 2)
"""Types whose numbers of layers differ by less than this make groups as large as the largest type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """What one layer keeps of one type, on one rank; ``KVCacheSpec`` there.

    ``token_bytes`` is 0 of what grows by no token, ``state_bytes`` what it takes then. ``window`` are the tokens of a window
    or a chunk. ``several``: the layer keeps rows of other types too.
    """

    kind: str
    type: CacheType
    token_bytes: Fraction = Fraction(0)
    state_bytes: int = 0
    window: int | None = None
    several: bool = False
    block_tokens: int = 0
    page_bytes: int = 0

    @property
    def own_bytes(self) -> int:
        """Bytes of a page without padding."""
        if self.type == "state":
            return self.state_bytes
        return ceil(self.token_bytes * self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share a table of blocks. ``layers`` on each stage; ``block_tokens`` of one block."""

    kinds: tuple[str, ...]
    type: CacheType
    layers: tuple[int, ...]
    block_tokens: int
    window: int | None
    page_bytes: int
    own_bytes: int

    def blocks(self, tokens: int, *, source_tokens: int = 0, mode: StateMode = "none", cp: int = 1) -> int:
        """Blocks that a sequence of so many tokens holds between two steps.

        A window needs ``ceil((window - 1) / block) + 1`` at most, since it may begin inside a block
        (``SlidingWindowSpec.max_memory_usage_bytes`` without the chunk that is being read).
        """
        if self.type == "source":
            return _ceil(source_tokens, self.block_tokens)
        if tokens < 1:
            return 0
        if self.type == "state":
            whole = _ceil(tokens, self.block_tokens)
            return {"none": 1, "align": min(whole, 2), "all": whole}[mode]
        if self.window is None:
            return _ceil(_ceil(tokens, cp), self.block_tokens)
        held = _ceil(self.window - 1, self.block_tokens) + 1
        if self.type == "chunked":
            held = _ceil(self.window, self.block_tokens)
        return min(_ceil(tokens, self.block_tokens), held)

    def admitted_blocks(
        self, tokens: int, in_flight_tokens: int, *, source_tokens: int = 0, mode: StateMode = "none", cp: int = 1
    ) -> int:
        """Blocks that a request may come to hold while so many tokens are read at once (``max_admission_blocks_per_request``)."""
        if self.window is None or tokens < 1:
            return self.blocks(tokens, source_tokens=source_tokens, mode=mode, cp=cp)
        if self.type == "chunked":
            return _ceil(min(self.window + in_flight_tokens, tokens), self.block_tokens)
        return _ceil(min(self.window - 1 + in_flight_tokens, tokens), self.block_tokens) + 1

    def shared_blocks(self, prefix_tokens: int, cp: int = 1) -> int:
        """Whole blocks of a common prefix that requests share as long as they run: those that no window leaves."""
        return prefix_tokens // cp // self.block_tokens if self.type == "full" else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "kinds": list(self.kinds),
            "type": self.type,
            "layers": sum(self.layers),
            "block_tokens": self.block_tokens,
            "window_tokens": self.window,
            "page_bytes": self.page_bytes,
            "page_bytes_without_padding": self.own_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Groups, and the bytes of one block on a rank of each stage. ``beside_bytes`` of a request lie outside the blocks."""

    groups: tuple[Group, ...]
    block_bytes: tuple[int, ...]
    beside_bytes: tuple[int, ...]
    mode: StateMode
    cp: int
    notes: tuple[str, ...]

    def request_blocks(self, tokens: int, *, source_tokens: int = 0) -> int:
        """Blocks of one sequence, over all groups."""
        return sum(
            group.blocks(tokens, source_tokens=source_tokens, mode=self.mode, cp=self.cp) for group in self.groups
        )

    def admitted_blocks(self, tokens: int, in_flight_tokens: int, *, source_tokens: int = 0) -> int:
        """Blocks of one sequence while it is read, over all groups."""
        return sum(
            group.admitted_blocks(tokens, in_flight_tokens, source_tokens=source_tokens, mode=self.mode, cp=self.cp)
            for group in self.groups
        )

    def batch_blocks(self, batch: int, tokens: int, *, source_tokens: int = 0, prefix_tokens: int = 0) -> int:
        """Blocks of a batch whose sequences begin with the same ``prefix_tokens``, kept once.

        Each has a last token of its own to go on from (``max_cache_hit_length`` in ``get_computed_blocks``).
        """
        shared = sum(group.shared_blocks(min(prefix_tokens, tokens - 1), self.cp) for group in self.groups)
        return batch * (self.request_blocks(tokens, source_tokens=source_tokens) - shared) + shared

    def batch_bytes(
        self, stage: int, batch: int, tokens: int, *, source_tokens: int = 0, prefix_tokens: int = 0
    ) -> int:
        """Bytes of a batch on one rank of a stage."""
        blocks = self.batch_blocks(batch, tokens, source_tokens=source_tokens, prefix_tokens=prefix_tokens)
        return blocks * self.block_bytes[stage] + batch * self.beside_bytes[stage]

    def least_bytes(self, stage: int) -> int:
        """What a request of one token holds: a block of every group that it needs."""
        return self.batch_bytes(stage, 1, 1, source_tokens=1)

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": [group.to_json() for group in self.groups],
            "block_bytes": max(self.block_bytes, default=0),
            "blocks_of_least_request": self.request_blocks(1, source_tokens=1),
            "state_mode": self.mode,
            "notes": list(self.notes),
        }


def plan_pages(
    stages: Sequence[Sequence[LayerCache]],
    *,
    block_tokens: int,
    beside_bytes: Sequence[int] = (),
    mode: StateMode = "none",
    state_block_tokens: int | None = None,
    cp: int = 1,
) -> Pages:
    """How a paged runtime lays out the layers of each stage, in order.

    ``state_block_tokens`` is ``--mamba-block-size``: under mode ``all`` states are kept at multiples of it.
    """
    notes: list[str] = []
    flat = [layer for stage in stages for layer in stage]
    block = align_hybrid_block_size(flat, block_tokens, mode=mode, state_block_tokens=state_block_tokens)
    if block != block_tokens:
        notes.append(
            f"blocks of attention have {block:,} tokens, not {block_tokens:,}, so that their page holds a whole state"
        )
    sized = [[replace(layer, block_tokens=block) for layer in stage] for stage in stages]
    if is_uniform_type([layer for stage in sized for layer in stage]):
        return _uniform(sized, tuple(beside_bytes), mode, cp, notes)
    if any(layer.several for layer in flat):
        return _packed(sized, tuple(beside_bytes), mode, cp, notes)
    return _grouped(sized, tuple(beside_bytes), mode, cp, notes)


def align_hybrid_block_size(
    layers: Sequence[LayerCache],
    block_tokens: int,
    *,
    mode: StateMode = "none",
    state_block_tokens: int | None = None,
) -> int:
    """Tokens of a block of attention: more than asked for where a page would be smaller than a recurrent state.

    The least multiple of ``block_tokens`` whose page holds the state; under mode ``all`` a common multiple of it and
    ``state_block_tokens``. Nothing changes where there is no state, or nothing else.
    """
    state = max((layer.state_bytes for layer in layers if layer.type == "state"), default=0)
    token = max((layer.token_bytes for layer in layers if layer.type != "state"), default=Fraction(0))
    if not state or not token:
        return block_tokens
    unit = lcm(block_tokens, state_block_tokens) if mode == "all" and state_block_tokens else block_tokens
    return unit * _ceil(ceil(state / token), unit)


def is_uniform_type(layers: Sequence[LayerCache]) -> bool:
    """Whether one group holds all layers, whatever their pages (``UniformTypeKVCacheSpecs``)."""
    return len({(layer.type, layer.window) for layer in layers}) <= 1


def unify_page_size(layers: Sequence[LayerCache]) -> list[LayerCache]:
    """The layers with one page size, the largest: by more tokens a block where that divides, else by padding."""
    largest = max(layer.own_bytes for layer in layers)

    def unified(layer: LayerCache) -> LayerCache:
        own = layer.own_bytes
        if layer.type != "state" and largest % own == 0:
            layer = replace(layer, block_tokens=layer.block_tokens * (largest // own))
        return replace(layer, page_bytes=largest)

    return [unified(layer) for layer in layers]


def group_size(counts: Sequence[int]) -> int:
    """Layers of a group: those of the rarest type, or of the commonest where it has less than half as many more."""
    return max(counts) if max(counts) < min(counts) * GROUP_PADDING else min(counts)


def _uniform(
    stages: list[list[LayerCache]], beside: tuple[int, ...], mode: StateMode, cp: int, notes: list[str]
) -> Pages:
    flat = [layer for stage in stages for layer in stage]
    sums = tuple(sum(layer.own_bytes for layer in stage) for stage in stages)
    groups: tuple[Group, ...] = ()
    if flat:
        groups = (_group(flat, tuple(len(stage) for stage in stages), flat[0].own_bytes),)
    return _pages(groups, sums, beside, mode, cp, notes)


def _grouped(
    stages: list[list[LayerCache]], beside: tuple[int, ...], mode: StateMode, cp: int, notes: list[str]
) -> Pages:
    """Types of layers, each cut into groups of one size; layers go to the groups of their type in turn."""
    flat = [(layer, index) for index, stage in enumerate(stages) for layer in stage]
    layers = list(zip(unify_page_size([layer for layer, _ in flat]), [index for _, index in flat], strict=True))
    buckets: dict[LayerCache, list[tuple[LayerCache, int]]] = {}
    for layer, index in layers:
        buckets.setdefault(replace(layer, kind=""), []).append((layer, index))
    size = group_size([len(bucket) for bucket in buckets.values()])
    page = layers[0][0].page_bytes
    groups: list[Group] = []
    for bucket in buckets.values():
        count = _ceil(len(bucket), size)
        if missing := count * size - len(bucket):
            kinds = ", ".join(dict.fromkeys(layer.kind for layer, _ in bucket))
            empty = f"{missing} place{'s' if missing > 1 else ''}"
            notes.append(f"{kinds}: {len(bucket)} layers fill {count} groups of {size} but for {empty}")
        for number in range(count):
            members = bucket[number::count]
            on_stage = tuple(sum(index == stage for _, index in members) for stage in range(len(stages)))
            groups.append(_group([layer for layer, _ in members], on_stage, page))
        own = bucket[0][0].own_bytes
        if own < page:
            notes.append(f"{bucket[0][0].kind}: pages of {own:,} B are padded to {page:,} B, by {page / own - 1:.2%}")
    block_bytes = tuple(page * max(group.layers[stage] for group in groups) for stage in range(len(stages)))
    return _pages(tuple(groups), block_bytes, beside, mode, cp, notes)


def _packed(
    stages: list[list[LayerCache]], beside: tuple[int, ...], mode: StateMode, cp: int, notes: list[str]
) -> Pages:
    """One group a type, laid over each other in slabs as large as the largest (``_get_kv_cache_config_packed``)."""
    buckets: dict[tuple[CacheType, int | None, Fraction], list[tuple[LayerCache, int]]] = {}
    for index, stage in enumerate(stages):
        for layer in stage:
            buckets.setdefault((layer.type, layer.window, layer.token_bytes), []).append((layer, index))
    sums = {key: sum(layer.own_bytes for layer, _ in bucket) for key, bucket in buckets.items()}
    largest = max(sums.values())
    groups: list[Group] = []
    slabs = [0] * len(stages)
    for key, bucket in buckets.items():
        # A group of small pages takes as many more tokens a block as the slab has room for.
        more = largest // sums[key] if key[0] != "state" else 1
        wide = [(replace(layer, block_tokens=layer.block_tokens * more), index) for layer, index in bucket]
        on_stage = tuple(sum(index == stage for _, index in wide) for stage in range(len(stages)))
        groups.append(_group([layer for layer, _ in wide], on_stage, wide[0][0].own_bytes))
        for stage in range(len(stages)):
            slabs[stage] = max(slabs[stage], sum(layer.own_bytes for layer, index in wide if index == stage))
    notes.append(
        "layers keep rows of several kinds: their groups share slabs, as vLLM packs DeepSeek-V4; it chooses the tokens of each "
        "kind's blocks by hand, here they fill the slab"
    )
    return _pages(tuple(groups), tuple(slabs), beside, mode, cp, notes)


def _group(layers: list[LayerCache], on_stage: tuple[int, ...], page_bytes: int) -> Group:
    first = layers[0]
    return Group(
        kinds=tuple(dict.fromkeys(layer.kind for layer in layers)),
        type=first.type,
        layers=on_stage,
        block_tokens=first.block_tokens,
        window=first.window,
        page_bytes=page_bytes,
        own_bytes=first.own_bytes,
    )


def _pages(
    groups: tuple[Group, ...],
    block_bytes: tuple[int, ...],
    beside: tuple[int, ...],
    mode: StateMode,
    cp: int,
    notes: list[str],
) -> Pages:
    return Pages(
        groups=groups,
        block_bytes=block_bytes,
        beside_bytes=beside or (0,) * len(block_bytes),
        mode=mode,
        cp=cp,
        notes=tuple(notes),
    )


def _ceil(size: int, step: int) -> int:
    return -(-size // step)
