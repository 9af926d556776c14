"""Latent attention over chosen keys: an indexer scores, the best are read, masked for many tokens and gathered for one."""

# Shape suffixes: B batch, S new tokens, T keys, C chosen keys, N heads (the indexer's own in its functions), H width, X row.

from __future__ import annotations

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops.sparse_latent import SparseLatentAttention as Op
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import Attend, LatentAttention, from_heads, to_heads
from archc.torch_backend.leaves.caches import write_rows
from archc.torch_backend.leaves.softmax import attend, visible
from archc.torch_backend.step import Step
from archc.torch_backend.twins.attention import twin_of
from archc.torch_backend.twins.sparse_latent import scores_of

LARGEST_PRODUCTS = 1 << 28
"""Products of index heads and keys that are held at once, in float32: queries are taken in pieces beyond."""


@torch.no_grad()
def index_scores(q_BSNH: Tensor, k_BTH: Tensor, weights_BSN: Tensor, seen: Tensor) -> Tensor:
    """``sum_n w_n relu(q_n k)`` in float32: (B, S, T), minus infinity where a key is not seen. ``seen`` is (B or 1, 1, S, T)."""
    batch, seq, heads, _ = q_BSNH.shape
    keys_B1HT = k_BTH.float().transpose(1, 2).unsqueeze(1)
    pieces = -(-batch * seq * heads * k_BTH.shape[1] // LARGEST_PRODUCTS)
    scores = [
        (weights.float().unsqueeze(2) @ (q.float() @ keys_B1HT).relu()).squeeze(2)
        for q, weights in zip(q_BSNH.chunk(pieces, 1), weights_BSN.chunk(pieces, 1), strict=True)
    ]
    return torch.cat(scores, 1).masked_fill(~seen[:, 0], float("-inf"))


@torch.no_grad()
def chosen(scores_BST: Tensor, topk: int) -> Tensor:
    """Which keys are read, (B, S, T) bool: ``topk`` a query, or all with a score; of equal scores the earlier key wins."""
    finite = scores_BST > float("-inf")
    if scores_BST.shape[-1] <= topk:
        return finite
    least = scores_BST.topk(topk, -1).values[..., -1:]
    above, level = scores_BST > least, scores_BST == least
    # torch.topk keeps any of those that are level, and prefill and decode should keep the same.
    left = topk - above.sum(-1, keepdim=True)
    return (above | (level & (level.cumsum(-1) <= left))) & finite


def places(chosen_BT: Tensor, topk: int) -> Tensor:
    """Where chosen keys are, in order, then any others, (B, C): C is topk, or all keys where there are fewer."""
    keys = chosen_BT.shape[-1]
    rank = torch.arange(keys, 0, -1, device=chosen_BT.device) * chosen_BT
    return rank.topk(min(topk, keys), -1).indices


class SparseLatentAttention(LatentAttention):
    """MLA under an indexer. ``latent`` and ``index_key`` are caches, written in place.

    Adapters put on ``kv_b_proj`` act in the expanded form only, until they are merged into its weight.
    """

    def __init__(self, op: Op, context: Context) -> None:
        nn.Module.__init__(self)
        self.nope_dim, self.rope_dim, self.value_dim = op.nope_dim, op.rope_dim, op.value_dim
        self.kv_lora_rank, self.scale = op.kv_lora_rank, op.scale
        self.index_heads, self.index_dim, self.topk = op.index_heads, op.index_dim, op.topk
        self.kernel: Attend = attend if context.twin is None else twin_of(context.twin)
        self.scores = index_scores if context.twin is None else scores_of(context.twin)
        # A twin scores what there is to score, however little there is to choose.
        self.always_scores = context.twin is not None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        q: Tensor,
        latent: Tensor,
        shared: Tensor,
        index_q: Tensor,
        index_k: Tensor,
        index_weights: Tensor,
        step: Step | None = None,
        cache: Tensor | None = None,
        index_key: Tensor | None = None,
    ) -> Tensor:
        q_BNSH, rows_BTX = to_heads(q, self.nope_dim + self.rope_dim), torch.cat((latent, shared), -1)
        seq = q_BNSH.shape[2]
        at = torch.arange(seq, device=q.device).unsqueeze(0)
        filled = False
        if cache is not None and index_key is not None:
            assert step is not None, "a cache needs a step"
            write_rows(cache, rows_BTX.unsqueeze(1), step)
            write_rows(index_key, index_k.unsqueeze(1), step)
            if step.past > 0:
                total, at, filled = step.past + seq, step.positions, True
                rows_BTX, index_k = cache[:, 0, :total].to(q.dtype), index_key[:, 0, :total].to(q.dtype)
        one = seq == 1 and cache is not None
        total = rows_BTX.shape[1]
        if total <= self.topk and not self.always_scores:
            mask = None
            if filled and not (one and step is not None and step.uniform):
                mask = visible(at, torch.arange(total, device=q.device).unsqueeze(0))
            # `True if … else False`: a symbolic bool would break a compiled graph.
            causal = True if seq > 1 and not filled else False  # noqa: SIM210
        else:
            seen = visible(at, torch.arange(total, device=q.device).unsqueeze(0))
            index_q_BSNH = index_q.unflatten(-1, (self.index_heads, self.index_dim))
            mask = chosen(self.scores(index_q_BSNH, index_k, index_weights, seen), self.topk).unsqueeze(1)
            causal = False
            if one:
                index_BC = places(mask[:, 0, 0], self.topk)
                rows_BTX = rows_BTX.gather(1, index_BC.unsqueeze(-1).expand(-1, -1, rows_BTX.shape[-1]))
                mask = mask.gather(3, index_BC[:, None, None])
        latent, shared = rows_BTX[..., : self.kv_lora_rank], rows_BTX[..., self.kv_lora_rank :]
        if one:
            return from_heads(self._absorbed(q_BNSH, latent, shared, mask))
        return from_heads(self._expanded(q_BNSH, latent, shared, mask, causal))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, index={self.index_heads} x {self.index_dim}, topk={self.topk}"


def sparse_latent_attention(node: Node, context: Context) -> nn.Module:
    op = node.op
    assert isinstance(op, Op)
    module = SparseLatentAttention(op, context)
    module.kv_b_proj = context.linear(node.params["kv_b_proj"])
    return module
