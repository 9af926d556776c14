"""Attention to chosen blocks of keys: which block is whose, masks over rows, and rows of blocks for one token."""

# Shape suffixes: B batch, S new tokens, T rows, J blocks, C chosen blocks, N query heads, K key-value heads, H width.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from archc.ops.blocks import SLAB_ELEMENTS
from archc.torch_backend.leaves.softmax import visible
from archc.torch_backend.step import Step


def ceil_div(number: int, by: int) -> int:
    """ceil(number / by)."""
    return -(-number // by)


def positions_of(step: Step | None, x_BNSH: Tensor) -> Tensor:
    """Positions of the new tokens, (1 or B, S)."""
    return torch.arange(x_BNSH.shape[2], device=x_BNSH.device).unsqueeze(0) if step is None else step.positions


def choose(score_BNSJ: Tensor, at_BS: Tensor, block: int, count: int, *, initial: int = 0, local: int = 1) -> Tensor:
    """The best blocks of each token and head, (B, N, S, C) int64.

    The first ``initial`` blocks and the last ``local`` ones up to the token's own are always among them. Where a token has fewer
    blocks than that, later ones fill up, of which it sees nothing.
    """
    own = (at_BS // block)[:, None, :, None]
    number = torch.arange(score_BNSJ.shape[-1], device=score_BNSJ.device)
    score = score_BNSJ.masked_fill((number < initial) | (number > own - local), float("inf"))
    score = score.masked_fill(number > own, float("-inf"))
    return score.topk(min(count, score.shape[-1]), -1, sorted=False)[1]


def rows_mask(chosen_BNSC: Tensor, at_BS: Tensor, block: int, rows: int) -> Tensor:
    """Which of the rows each token and head sees, (B, N, S, T) bool: those of its chosen blocks up to itself."""
    blocks = ceil_div(rows, block)
    shape = (*chosen_BNSC.shape[:-1], blocks)
    taken = torch.zeros(shape, dtype=torch.bool, device=at_BS.device).scatter_(-1, chosen_BNSC, True)
    taken = taken.unsqueeze(-1).expand(*shape, block).flatten(-2)[..., :rows]
    return taken & visible(at_BS, torch.arange(rows, device=at_BS.device).unsqueeze(0))


def rows_of_one(chosen_BN1C: Tensor, at_B1: Tensor, block: int, rows: int) -> tuple[Tensor, Tensor]:
    """(rows of one token's chosen blocks, (B, N, C block); which of them it sees, (B, N, 1, C block) bool)."""
    inside = torch.arange(block, device=at_B1.device)
    row = (chosen_BN1C[:, :, 0, :, None] * block + inside).flatten(-2)
    seen = row <= at_B1.unsqueeze(-1)
    return row.clamp(max=rows - 1), seen.unsqueeze(2)


def taken_rows(cache_BNTH: Tensor, row_BNR: Tensor) -> Tensor:
    """Those rows of each head, (B, N, R, H)."""
    return cache_BNTH.gather(2, row_BNR.unsqueeze(-1).expand(-1, -1, -1, cache_BNTH.shape[-1]))


def in_slabs(seq: int, elements_a_token: int, one: Callable[[slice], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What ``one`` gives for slices of the new tokens, (B, N, S, H) each, put together.

    A token has so many scores and mask entries, for all heads and sequences together; a slice has at most ``SLAB_ELEMENTS``.
    """
    if seq == 1 or seq * elements_a_token <= SLAB_ELEMENTS:
        # No number of slices, so that a compiled graph serves every length.
        return one(slice(None))
    size = max(1, SLAB_ELEMENTS // elements_a_token)
    parts = [one(slice(start, start + size)) for start in range(0, seq, size)]
    return tuple(torch.cat(each, 2) for each in zip(*parts, strict=True))


def new_block_rows(first_B: Tensor, start_B: Tensor, *, count: int, stride: int, block: int, held: int) -> Tensor:
    """Rows of the next ``count`` blocks of each sequence in [the ``held`` rows before its new tokens | those], (B, count, block).

    Block i begins at token ``stride i``. A block that is not complete yet ends in the last row, whatever that is.
    """
    number = first_B.unsqueeze(1) + torch.arange(count, device=first_B.device)
    token = number.unsqueeze(-1) * stride + torch.arange(block, device=first_B.device)
    return token - (start_B - held).view(-1, 1, 1)


def write_blocks(cache_BKTH: Tensor, new_BKnH: Tensor, first_B: Tensor) -> None:
    """A row for each of the next blocks of each sequence. Those that are not complete yet are overwritten when they are."""
    batch = torch.arange(cache_BKTH.shape[0], device=cache_BKTH.device).unsqueeze(1)
    number = first_B.unsqueeze(1) + torch.arange(new_BKnH.shape[2], device=first_B.device)
    cache_BKTH[batch, :, number] = new_BKnH.transpose(1, 2).to(cache_BKTH.dtype)
