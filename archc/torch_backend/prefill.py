"""What is fed before the first id is drawn: prompts in chunks, a prefix whole, or a text for the encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from archc.torch_backend.step import Step

Progress = Callable[[int, int], None]
"""Called with the tokens that are in the cache and those of all prompts."""

Ids = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Fed:
    """What prompts left behind.

    Attributes:
        logits: of each row's last token, (batch, rows of the table).
        lengths: tokens that each row of the cache holds.
        more: what every further call is given by name.
    """

    logits: Tensor
    lengths: list[int]
    more: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


def padded(rows: Ids, device: torch.device) -> Tensor:
    """Ids (batch, tokens of the longest row), padded on the right with 0."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return torch.from_numpy(ids).to(device)


def feed_prompts(
    model: nn.Module,
    prompts: Ids,
    cache: dict[str, Tensor],
    *,
    chunk: int,
    is_prefix: bool,
    progress: Progress | None,
) -> Fed:
    """Feed prompts, padded on the right, ``chunk`` tokens at a time; all at once where they are a prefix that sees itself."""
    device = next(iter(model.parameters())).device
    lengths = np.array([len(prompt) for prompt in prompts])
    longest, found = int(lengths.max()), None
    more = {"prefix_length": torch.from_numpy(lengths).to(device)} if is_prefix else {}
    chunk = longest if is_prefix else chunk
    for start in range(0, longest, chunk):
        past = np.minimum(lengths, start)
        new = np.minimum(lengths, start + chunk) - past
        seq = int(new.max())
        ids = padded([prompt[start : start + chunk] for prompt in prompts], device)
        # Rows that are as long as the longest are alike in every chunk.
        if int(lengths.min()) == longest:
            step = Step.at(start, seq, device=device)
        else:
            step = Step.ragged(torch.from_numpy(past).to(device), torch.from_numpy(new).to(device), seq)
        logits = model(ids, step, cache, last_only=True, **more)[:, 0]
        # Of a row that waits, logits mean nothing: those of its last tokens are kept.
        fed = torch.from_numpy(new > 0).to(device).unsqueeze(1)
        found = logits if found is None else torch.where(fed, logits, found)
        if progress is not None:
            progress(int((past + new).sum()), int(lengths.sum()))
    assert found is not None, "a prompt has at least one token"
    return Fed(found, lengths.tolist())


def feed_encoder(
    model: nn.Module, prompts: Ids, first: Sequence[int], cache: dict[str, Tensor], *, progress: Progress | None
) -> Fed:
    """Give the prompts to the encoder and ``first`` to each row of the decoder.

    The cache keeps what the decoder reads of the encoder; further calls only say what of it is padding.
    """
    device = next(iter(model.parameters())).device
    source = padded(prompts, device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    seen = torch.arange(source.shape[1], device=device) < lengths.unsqueeze(1)
    more = {} if bool(seen.all()) else {"encoder_attention_mask": seen.long()}
    ids = padded([first] * len(prompts), device)
    step = Step.at(0, len(first), device=device)
    logits = model(ids, step, cache, last_only=True, encoder_input_ids=source, **more)[:, 0]
    if progress is not None:
        progress(int(lengths.sum()), int(lengths.sum()))
    return Fed(logits, [len(first)] * len(prompts), more)
