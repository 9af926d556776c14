"""What every stateful op needs to know about one call over a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(eq=False)
class Step:
    """One call over a cache: ``seq`` new tokens a row, right-padded when rows differ.

    ``past`` is a host number, the tokens that the longest row holds: caches are sliced by it, so nothing is copied and
    nothing recompiles as the context grows. ``positions`` is (1, seq) when all rows are alike, else (batch, seq);
    ``start`` (batch,) and ``new`` (batch,) are the row's own past and its valid new tokens, None when all are alike.
    """

    past: int
    positions: Tensor
    start: Tensor | None = None
    new: Tensor | None = None

    @property
    def uniform(self) -> bool:
        """Whether all rows hold the same number of tokens and none is padded."""
        return self.new is None

    @classmethod
    def at(cls, past: int, seq: int, *, device: torch.device | str | None = None) -> Step:
        """All rows hold ``past`` tokens and get ``seq`` new ones."""
        return cls(past, torch.arange(past, past + seq, device=device).unsqueeze(0))

    @classmethod
    def ragged(cls, past: Tensor, new: Tensor, seq: int) -> Step:
        """Row b holds ``past[b]`` tokens and gets ``new[b]`` of the ``seq`` columns; the rest is padding on the right.

        Padding is written behind the row's last token and overwritten later, so a cache needs max(past) + seq rows.

        Raises:
            ValueError: a row has more new tokens than columns, or none of the two tensors is (batch,).
        """
        if past.dim() != 1 or past.shape != new.shape:
            raise ValueError(f"past and new should both be (batch,); found {tuple(past.shape)} and {tuple(new.shape)}")
        if int(new.max()) > seq or int(new.min()) < 0 or int(past.min()) < 0:
            raise ValueError(f"new should lie within 0 and seq, {seq} (found {new.tolist()}), past at 0 or above")
        positions = past.unsqueeze(1) + torch.arange(seq, device=past.device)
        return cls(int(past.max()), positions, past, new)

    def valid(self) -> Tensor | None:
        """(batch, seq) bool, False on padding; None when there is none."""
        if self.new is None:
            return None
        return torch.arange(self.positions.shape[1], device=self.positions.device) < self.new.unsqueeze(1)


def pad_right(input_ids: Tensor, attention_mask: Tensor, *, past: Tensor | None = None) -> tuple[Tensor, Step]:
    """A batch that is padded anywhere, as caches take it: tokens first, padding behind them, and the step that says so.

    Both are (batch, seq), the mask 1 for tokens and 0 for padding, on whatever side or in between; ``past`` (batch,) are the
    tokens that rows hold already. The ids come back cut to the longest row.

    Raises:
        ValueError: ids and mask differ in shape.
    """
    if input_ids.shape != attention_mask.shape or input_ids.dim() != 2:
        raise ValueError(
            f"ids and mask should both be (batch, seq); found {tuple(input_ids.shape)} and {tuple(attention_mask.shape)}"
        )
    is_token = attention_mask != 0
    new = is_token.sum(-1)
    order = is_token.logical_not().long().argsort(dim=-1, stable=True)
    ids = input_ids.gather(1, order)[:, : max(1, int(new.max()))]
    return ids, Step.ragged(torch.zeros_like(new) if past is None else past, new, ids.shape[1])


def carried(state: Tensor | None, step: Step | None) -> Tensor | None:
    """What a fixed state brings into a call: nothing where a row is empty, so that a cache can be used again as it is.

    ``state`` is (batch, …); None stands for zeros.
    """
    if state is None or step is None or step.past == 0:
        return None
    if step.start is None:
        return state
    # Filled, not multiplied: what an earlier conversation left may be a NaN.
    return state.masked_fill((step.start == 0).view(-1, *(1,) * (state.dim() - 1)), 0.0)


def token_positions(ids: Tensor | None, padding: Tensor | None, step: Step | None = None) -> Tensor | None:
    """Positions of a call, (1 or batch, seq): the step's, or 0, 1, 2, … of the tokens, padding left out; None without ids."""
    if step is not None:
        return step.positions
    if ids is None:
        return None
    if padding is None:
        return torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
    return (padding.cumsum(-1) - 1).clamp(min=0)


def when_given(target: Callable[..., Any], first: Any, *args: Any, **keywords: Any) -> Any:
    """``target(first, ...)``, or None where that is made of nothing: a call that brings no tokens of the encoder."""
    return None if first is None else target(first, *args, **keywords)


def part_or_none(values: tuple[Tensor, ...] | None, index: int) -> Tensor | None:
    """One of several values, where there are any."""
    return None if values is None else values[index]


def or_zeros(given: Tensor | None, input_ids: Tensor) -> Tensor:
    """A further input of ids (batch, seq), all zero where the caller gives none."""
    return torch.zeros_like(input_ids) if given is None else given


def last_tokens(x: Tensor, step: Step | None, last_only: bool) -> Tensor:
    """(batch, seq, D), or each row's last valid token (batch, 1, D)."""
    if not last_only:
        return x
    if step is None or step.new is None:
        return x[:, -1:]
    index = (step.new - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, x.shape[-1])
    return x.gather(1, index)
