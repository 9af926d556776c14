"""Context parallelism: each rank has some tokens of every sequence, and attention reads the gathered keys and values of all.

They are gathered and not passed around a ring: keys and values are small where heads share them, latents smaller, any mask can
be said, and torch's ring (``torch.distributed.tensor.experimental``) has CUDA kernels only. What works on single tokens needs
nothing but their own positions. Which ops can be run so, ``archc.planning.training.context_parallel`` says.
"""

# Shape suffixes: B batch, S tokens of this rank, T of all ranks, L = S / 2 of a piece, N query heads, K key-value heads,
# H key width, V value width, R latent rank.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from archc.errors import Problem, SpecError
from archc.graph.graph import Graph
from archc.planning.training.context_parallel import context_limits, context_problems
from archc.torch_backend.leaves.attention import Attention, LatentAttention, SharedAttention, from_heads, to_heads
from archc.torch_backend.leaves.masked_attention import RelativeBias
from archc.torch_backend.leaves.softmax import added, attend, while_alive
from archc.torch_backend.step import Step
from archc.training.objectives.batch import Batch
from archc.training.parallel.classes import subclass
from archc.training.parallel.pieces import CutStep, Pieces, lower_right
from archc.training.parallel.world import World


def cut(model: nn.Module, graph: Graph, world: World) -> nn.Module:
    """A model whose passes without a cache get some tokens of each sequence (``cut_batch``), in place.

    A pass over a cache is as before, of all tokens on every rank.

    Raises:
        SpecError: something in it needs more than the keys and values of other ranks' tokens; every reason is listed.
    """
    if world.parallel.cp == 1:
        return model
    reasons = dict.fromkeys((*context_problems(graph, world.parallel.cp), *context_limits(graph, world.parallel.cp)))
    if reasons:
        raise SpecError([Problem(message=message, code="split") for message in reasons])
    pieces = Pieces(world.submesh("cp"))
    for leaf in model.modules():
        mixed_in = next((cut for plain, cut in _CUT if isinstance(leaf, plain)), None)
        if mixed_in is not None:
            leaf.__class__ = subclass(type(leaf), mixed_in)
            leaf.pieces = pieces  # type: ignore[assignment]
    return model


def cut_batch(batch: Batch, world: World) -> tuple[Batch, Step | None]:
    """This rank's tokens of a micro-batch, and the step that tells a model their positions; all of it and None without cp.

    Sequences must be a multiple of 2 x cp long.
    """
    if world.parallel.cp == 1:
        return batch, None
    pieces, seq = Pieces(world.submesh("cp")), batch.targets.shape[1]
    inputs = {name: pieces.take(x, 1) if x.dim() > 1 else x for name, x in batch.inputs.items()}
    for rows, end in pieces.ends(seq):
        lower_right(rows, end)
    positions = pieces.take(torch.arange(seq, device=world.device).unsqueeze(0), 1)
    return Batch(inputs, pieces.take(batch.targets, 1)), CutStep(0, positions)


class _CutAttention(Attention):
    """Queries of this rank's tokens, over keys and values of all that come before them."""

    pieces: Pieces

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, step: Step | None, further: Tensor | None) -> Tensor:
        if step is not None:
            return super().attend(q, keys, values, step, further)
        rows = self.pieces.gather(torch.cat((keys, values), -1), 2)
        keys, values = rows[..., : keys.shape[-1]], rows[..., keys.shape[-1] :]
        queries = q.chunk(2, 2)
        # A bias (B or 1, N, S, T) lies beside the queries.
        biases = (None, None) if further is None else further.chunk(2, 2)
        mine = zip(self.pieces.mine, queries, biases, strict=True)
        return torch.cat([self._of_piece(number, part, keys, values, bias) for number, part, bias in mine], 2)

    def _of_piece(self, number: int, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Queries (B, N, L, H) of piece ``number``: (B, N, L, V)."""
        begin = number * q.shape[2]
        end = begin + q.shape[2]
        if bias is not None:
            return self._call(q, keys[:, :, :end], values[:, :, :end], bias[..., :end])
        is_causal = self.slopes is None and (self.ring_rows is None or end <= self.ring_rows)
        if is_causal and number == 0:
            return self._call(q, keys[:, :, :end], values[:, :, :end], None, causal=True if end > 1 else False)  # noqa: SIM210
        if is_causal and _has_kernel(q, self.kernel) and self.sinks is None and self.soft_cap is None:
            return self._call(q, keys[:, :, :end], values[:, :, :end], lower_right(end - begin, end))
        first = first_seen(begin, window=self.window, chunk=self.chunk, sink_tokens=self.sink_tokens)
        dtype = q.dtype if self.adds_masks else torch.bool
        key = (self.slopes, self.window, self.chunk, self.sink_tokens, first, begin, end, q.device, dtype)
        mask = while_alive(key, lambda: self._mask_of_piece(first, begin, end, q))
        return self._call(q, keys[:, :, first:end], values[:, :, first:end], mask)

    def _mask_of_piece(self, first: int, begin: int, end: int, q: Tensor) -> Tensor:
        positions = torch.arange(first, end, device=q.device).unsqueeze(0)
        return self._mask_between(positions[:, begin - first :], positions, q.dtype)


class _CutSharedAttention(_CutAttention, SharedAttention):
    """The same over keys and values of an earlier layer, which gave those of this rank's tokens."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | Step | None) -> Tensor:
        # Of a pass without a cache the plain one is told no step either.
        return super().forward(q, k, v, *(None if isinstance(each, CutStep) else each for each in rest))


class _CutLatentAttention(LatentAttention):
    """Latent attention that gathers latents, which every rank expands: they are a fraction of keys and values."""

    pieces: Pieces

    def forward(
        self, q: Tensor, latent: Tensor, shared: Tensor, step: Step | None = None, cache: Tensor | None = None
    ) -> Tensor:
        if cache is not None:
            return super().forward(q, latent, shared, step, cache)
        rows = self.pieces.gather(torch.cat((latent, shared), -1), 1)
        keys, values = self._keys_and_values(rows[..., : self.kv_lora_rank], rows[..., self.kv_lora_rank :])
        mine = zip(self.pieces.mine, to_heads(q, self.nope_dim + self.rope_dim).chunk(2, 2), strict=True)
        return from_heads(torch.cat([self._of_piece(number, part, keys, values) for number, part in mine], 2))

    def _of_piece(self, number: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries (B, N, L, H) of piece ``number``: (B, N, L, V)."""
        begin = number * q.shape[2]
        end = begin + q.shape[2]
        is_causal = self.ring_rows is None or end <= self.ring_rows
        first, mask = 0, None
        if is_causal and number and _has_kernel(q, self.kernel):
            mask = lower_right(end - begin, end)
        elif number or not is_causal:
            first = first_seen(begin, window=self.window, sink_tokens=self.sink_tokens)
            key = ("latent", self.window, self.sink_tokens, first, begin, end, q.device, q.dtype)
            mask = while_alive(key, lambda: self._mask_of_piece(first, begin, end, q))
        causal = True if mask is None and end > 1 else False  # noqa: SIM210 (see Attention)
        k, v = keys[:, :, first:end], values[:, :, first:end]
        return self.kernel(q, k, v, scale=self.scale, mask=mask, causal=causal)

    def _mask_of_piece(self, first: int, begin: int, end: int, q: Tensor) -> Tensor:
        positions = torch.arange(first, end, device=q.device).unsqueeze(0)
        return added(self._visible(positions[:, begin - first :], positions), q.dtype)


class _CutRelativeBias(RelativeBias):
    """Biases (1, N, S, T) of this rank's tokens and all keys."""

    pieces: Pieces

    def forward(self, positions: Tensor, *rest: Tensor | Step | None) -> Tensor:
        seq = positions.shape[1]
        # As if the other ranks' tokens were in a cache.
        whole = Step(seq * (self.pieces.mesh.size() - 1), positions)
        return super().forward(positions, *(whole if isinstance(each, CutStep) else each for each in rest))


_CUT: tuple[tuple[type[nn.Module], type[Any]], ...] = (
    (SharedAttention, _CutSharedAttention),
    (Attention, _CutAttention),
    (LatentAttention, _CutLatentAttention),
    (RelativeBias, _CutRelativeBias),
)
"""Leaves that look at other tokens, and the methods with which they look at other ranks' too."""


LOWER_RIGHT = ["cuda"]
"""Kinds of devices that have fused kernels for the last tokens of a causal mask; elsewhere it is numbers that are added."""


def _has_kernel(q: Tensor, kernel: object) -> bool:
    return kernel is attend and q.device.type in LOWER_RIGHT


def first_seen(begin: int, *, window: int | None = None, chunk: int | None = None, sink_tokens: int = 0) -> int:
    """The first key that the query at ``begin``, or one behind it, may see."""
    first = 0
    if window is not None and not sink_tokens:
        first = max(first, begin - window + 1)
    return first if chunk is None else max(first, begin - begin % chunk)
