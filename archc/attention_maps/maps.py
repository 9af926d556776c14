"""Every map that a model makes of one text, a layer at a time, with what the heads do in numbers."""

# Shape suffixes: S tokens, C columns, N heads.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archc.attention_maps.readers import Reading, Span, has_map, read
from archc.errors import ArchcError
from archc.graph.graph import LAYER
from archc.ir.op import Op
from archc.torch_backend.build import graph_of

MAX_TOKENS = 256
"""Of a text: a map grows with its square, and is made for every head."""
MAX_ELEMENTS = 1 << 27
"""Numbers in the maps of one leaf: half a gibibyte."""


@dataclass(frozen=True, slots=True)
class Head:
    """One head in numbers, averaged over its rows.

    ``entropy`` in nats and ``first`` share of the first column are of the weights' sizes over their sum; ``distance`` in
    tokens between a query and what it reads, None where columns are another text.
    """

    entropy: float
    distance: float | None
    first: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMap:
    """The map of one leaf: ``mean`` (S, C) over heads, ``weights`` (N, S, C) where they were asked for, float32 on the CPU."""

    path: str
    op_name: str
    stack: str
    layer: int | None
    branch: str
    mean: Tensor
    weights: Tensor | None
    heads: tuple[Head, ...]
    spans: tuple[Span, ...] | None
    reads_source: bool
    are_channels: bool
    difference: float

    @property
    def title(self) -> str:
        """As in ``decoder layer 3 attention (selected)``."""
        where = f"{self.stack} layer {self.layer}".strip() if self.layer is not None else ""
        kind = self.op_name.replace("_", " ")
        return f"{where} {kind}{f' ({self.branch})' if self.branch else ''}".strip()


def attention_maps(
    model: nn.Module,
    input_ids: Tensor,
    *,
    encoder_input_ids: Tensor | None = None,
    prefix_length: int = 0,
    layer: tuple[str | None, int] | None = None,
    keeps_heads: bool = False,
) -> list[AttentionMap]:
    """The maps of a text (1, seq) in order of execution; ``encoder_input_ids`` (1, source) are what a decoder's encoder reads.
    The first ``prefix_length`` tokens see each other where the stack's mask is a prefix.

    ``layer`` (stack or None for any, number) chooses; ``keeps_heads`` keeps more than the mean over heads.

    Raises:
        ArchcError: the text is too long, or no chosen layer moves anything from token to token.
    """
    for ids in (input_ids, encoder_input_ids):
        if ids is not None and ids.shape[1] > MAX_TOKENS:
            raise ArchcError(f"the text has {ids.shape[1]} tokens; maps are drawn of {MAX_TOKENS} at most")
    graph = graph_of(model)
    nodes = {path: node.op for path, node in graph.walk() if has_map(node.op)}
    chosen = {path: op for path, op in nodes.items() if layer is None or _is_chosen(path, layer)}
    if not chosen:
        there = sorted({_told(path) for path in nodes})
        raise ArchcError(
            f"{graph.name} has no map {'at all' if layer is None else 'in that layer'}"
            + (f"; those with one: {', '.join(there)}" if there else "")
        )
    found: list[AttentionMap] = []
    hooks = [
        model.get_submodule(path).register_forward_hook(_hook(path, op, found, keeps_heads=keeps_heads))
        for path, op in chosen.items()
    ]
    try:
        with torch.no_grad():
            further = {} if encoder_input_ids is None else {"encoder_input_ids": encoder_input_ids}
            if prefix_length:
                further["prefix_length"] = input_ids.new_tensor([prefix_length])
            model(input_ids, **further)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def place_of(path: str) -> tuple[str, int | None]:
    """(stack, "" where there is one only; number of the layer, None outside of layers) of a leaf's path."""
    parts = path.split(".")
    for end in range(1, len(parts)):
        match = LAYER.match(".".join(parts[: end + 1]))
        if match is not None:
            return match["stack"] or "", int(match["index"])
    return "", None


def _is_chosen(path: str, layer: tuple[str | None, int]) -> bool:
    stack, number = place_of(path)
    return number == layer[1] and layer[0] in (None, stack)


def _told(path: str) -> str:
    stack, number = place_of(path)
    return path if number is None else f"{stack}.{number}".lstrip(".")


def _hook(path: str, op: Op, found: list[AttentionMap], *, keeps_heads: bool) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        _require_bounded(path, op, args)
        for reading in read(module, op, args, output):
            found.append(_map(path, op, reading, keeps_heads=keeps_heads))

    return hook


def _require_bounded(path: str, op: Op, args: Sequence[Any]) -> None:
    """Raise ArchcError where a leaf's maps are more than a machine should hold; a scan has one for every channel."""
    heads = getattr(op, "num_heads", None) or args[0].shape[-1]
    tokens = max(x.shape[1] for x in args if isinstance(x, Tensor) and x.dim() > 1)
    if heads * args[0].shape[1] * tokens > MAX_ELEMENTS:
        raise ArchcError(
            f"{path} has {heads} maps of {args[0].shape[1]} by {tokens} tokens, more than fit here; use a shorter text"
        )


def _map(path: str, op: Op, reading: Reading, *, keeps_heads: bool) -> AttentionMap:
    stack, layer = place_of(path)
    weights = reading.weights.float()
    return AttentionMap(
        path=path,
        op_name=op.op_name,
        stack=stack,
        layer=layer,
        branch=reading.branch,
        mean=weights.mean(0).cpu(),
        weights=weights.cpu() if keeps_heads else None,
        heads=tuple(statistics(weights, reading.spans, reads_source=reading.reads_source)),
        spans=reading.spans,
        reads_source=reading.reads_source,
        are_channels=reading.are_channels,
        difference=reading.difference(),
    )


def statistics(weights_NSC: Tensor, spans: tuple[Span, ...] | None = None, *, reads_source: bool = False) -> list[Head]:
    """What each head does. Rows that read nothing count nowhere; a column of several tokens stands at their middle."""
    size = weights_NSC.abs()
    total_NS1 = size.sum(-1, keepdim=True)
    share = size / total_NS1.clamp(min=1e-30)
    rows_N = (total_NS1 > 0).sum((1, 2)).clamp(min=1)
    entropy_N = -torch.xlogy(share, share).sum((1, 2)) / rows_N
    first_N = share[..., 0].sum(1) / rows_N
    distances: list[float] | list[None] = [None] * len(size)
    if not reads_source:
        tokens, columns = size.shape[1:]
        row = torch.arange(tokens, device=size.device, dtype=size.dtype)
        at = row if spans is None else size.new_tensor([(a + b - 1) / 2 for a, b in spans])
        assert len(at) == columns
        distance_SC = (row.unsqueeze(1) - at).abs()
        distances = ((share * distance_SC).sum((1, 2)) / rows_N).tolist()
    return [
        Head(entropy, distance, first)
        for entropy, distance, first in zip(entropy_N.tolist(), distances, first_N.tolist(), strict=True)
    ]
