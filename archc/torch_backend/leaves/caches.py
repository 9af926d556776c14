"""Reading and writing caches in place: full buffers of ``capacity`` rows, rings of W rows, with sink rows before them or not."""

# Shape suffixes: B batch, S new tokens, T rows, W ring rows, K key-value heads, H width.

from __future__ import annotations

import torch
from torch import Tensor

from archc.torch_backend.step import Step


def write_rows(cache_BKTH: Tensor, new_BKSH: Tensor, step: Step) -> None:
    """New rows at their positions of a full cache.

    Raises:
        ValueError: the cache is too short for them.
    """
    seq, rows = new_BKSH.shape[2], cache_BKTH.shape[2]
    if step.past + seq > rows:
        raise ValueError(
            f"the cache holds {rows} tokens and {step.past} + {seq} are needed; make it with a larger max_model_len"
        )
    if step.uniform or step.past == 0:
        cache_BKTH[:, :, step.past : step.past + seq] = new_BKSH.to(cache_BKTH.dtype)
    else:
        batch = torch.arange(cache_BKTH.shape[0], device=cache_BKTH.device).unsqueeze(1)
        cache_BKTH[batch, :, step.positions] = new_BKSH.transpose(1, 2).to(cache_BKTH.dtype)


def ring_positions(end_B1: Tensor, rows: int, sink_tokens: int = 0) -> Tensor:
    """Position held by each row of a ring when ``end`` tokens were written, (B, rows); negative where none was.

    The first ``sink_tokens`` rows hold those positions for good; the others hold later ones, position p in the row that
    is p modulo their number. So rows fill up in order, and none holds what another does.
    """
    row = torch.arange(rows, device=end_B1.device).unsqueeze(0)
    last = end_B1 - 1
    held = last - (last - row) % (rows - sink_tokens)
    if sink_tokens == 0:
        return held
    return torch.where(row < sink_tokens, row.where(row <= last, -1), held.where(held >= sink_tokens, -1))


def write_ring(cache_BKWH: Tensor, new_BKSH: Tensor, step: Step, sink_tokens: int = 0) -> None:
    """The valid new rows that the ring holds after them, each in its row; rows that get none stay as they are."""
    seq, rows = new_BKSH.shape[2], cache_BKWH.shape[2]
    if step.uniform and seq == 1:
        ring = rows - sink_tokens
        # The minimum is the position itself up to the end of the first round, and a row of the ring after it.
        row = min(step.past, sink_tokens + (step.past - sink_tokens) % ring) if sink_tokens else step.past % ring
        cache_BKWH[:, :, row : row + 1] = new_BKSH.to(cache_BKWH.dtype)
        return
    start = step.positions[:, :1]
    end = start + (seq if step.new is None else step.new.unsqueeze(1))
    source = ring_positions(end, rows, sink_tokens) - start
    taken = source.clamp(min=0)[:, None, :, None].expand(new_BKSH.shape[0], new_BKSH.shape[1], -1, new_BKSH.shape[3])
    fresh = new_BKSH.gather(2, taken).to(cache_BKWH.dtype)
    cache_BKWH.copy_(torch.where((source >= 0)[:, None, :, None], fresh, cache_BKWH))
