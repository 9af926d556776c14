"""``archc.generate(model, prompts)``: a torch model that writes, over one cache that is made once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from archc.errors import ArchcError
from archc.generation.result import Generation, Token
from archc.generation.rows import DEFAULT_CHUNK_TOKENS, DEFAULT_NEW_TOKENS, Prompt, Rows, listed, prompt_ids
from archc.generation.sampling import Array, Sampler, Sampling, Seed
from archc.generation.text import Text, read_tokenizer
from archc.graph.graph import Graph
from archc.torch_backend.build import graph_of, new_cache
from archc.torch_backend.step import Step
from archc.units import gib

Progress = Callable[[int, int], None]
"""Called with the tokens that are in the cache and those of all prompts."""


@torch.inference_mode()
def generate(
    model: nn.Module,
    prompts: Prompt | Sequence[Prompt],
    *,
    tokenizer: Any = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | Sequence[Seed] = 0,
    stop_ids: Iterable[int] = (),
    chunk_size: int = DEFAULT_CHUNK_TOKENS,
    on_token: Callable[[Token], None] | None = None,
    progress: Progress | None = None,
) -> Generation:
    """Continue one prompt or several at once, texts or ids, each until one of ``stop_ids`` or ``max_new_tokens``.

    ``model`` is what ``archc.build`` made, with its weights. ``tokenizer``, which texts need, is a tokenizer.json or a
    ``tokenizers.Tokenizer``. ``max_new_tokens`` defaults to 128 or the room that is left. ``chunk_size`` tokens of a prompt
    are fed at a time. ``on_token`` sees every token when it is drawn, ``progress`` the prefill. Ids beyond the tokenizer's,
    which pad a table, are never drawn.

    Raises:
        ArchcError: a prompt is empty, holds ids that the model has not, or does not fit with the new tokens.
    """
    graph = graph_of(model)
    size = _vocab_size(graph, model)
    text = as_text(tokenizer)
    hint = f"{graph.name} has no tokenizer here, so a prompt is ids; hand over a tokenizer.json for texts"
    ids = prompt_ids(listed(prompts), text=text, vocab_size=size, hint=hint)
    if chunk_size < 1:
        raise ArchcError(f"chunk_size should be at least 1 (found {chunk_size})")
    new_tokens = _new_tokens(graph, max(map(len, ids)), max_new_tokens)
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    draw = _drawer(sampling, Sampler(sampling, ids, vocab_size=size), size)
    rows = Rows(ids, text, stop_ids=stop_ids, new_tokens=new_tokens, on_token=on_token)
    cache = _cache(model, len(ids), max(map(len, ids)) + new_tokens)
    start = time.perf_counter()
    first = draw(_prefill(model, ids, cache, chunk_size, progress))
    middle = time.perf_counter()
    for drawn in _decode(model, ids, cache, first, draw):
        if rows.take(drawn.tolist()):
            break
    return rows.generation(
        prefill_seconds=middle - start,
        decode_seconds=time.perf_counter() - middle,
        cache_bytes=sum(tensor.numel() * tensor.element_size() for tensor in cache.values()),
    )


def as_text(tokenizer: Any) -> Text | None:
    """A tokenizer as it is handed over: a path, a ``tokenizers.Tokenizer``, a ``Text`` or None."""
    if tokenizer is None or isinstance(tokenizer, Text):
        return tokenizer
    if isinstance(tokenizer, str | PathLike):
        return read_tokenizer(Path(tokenizer))
    # Text takes padding and truncation off, and a caller's tokenizer keeps its own.
    return Text(type(tokenizer).from_str(tokenizer.to_str()))


def _vocab_size(graph: Graph, model: nn.Module) -> int:
    if "logits" not in graph.outputs or graph.vocab_size is None:
        raise ArchcError(
            f"{graph.name} ends in {', '.join(graph.outputs)}, not in logits: there is nothing to draw from"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ArchcError(f"{graph.name} is on the meta device, so it has no weights; build it on another")
    return graph.vocab_size


def _new_tokens(graph: Graph, longest: int, asked: int | None) -> int:
    limit = graph.max_position_embeddings
    if asked is not None and asked < 1:
        raise ArchcError(f"max_new_tokens should be at least 1 (found {asked})")
    wanted = asked or (DEFAULT_NEW_TOKENS if limit is None else min(DEFAULT_NEW_TOKENS, max(1, limit - longest)))
    if limit is not None and longest + wanted > limit:
        raise ArchcError(
            f"a prompt of {longest:,} tokens and {wanted:,} new ones are {longest + wanted:,}, more than the {limit:,} of "
            "max_position_embeddings; shorten the prompt or ask for fewer"
        )
    return wanted


def _cache(model: nn.Module, batch: int, tokens: int) -> dict[str, Tensor]:
    try:
        return new_cache(model, batch=batch, max_model_len=tokens)
    except RuntimeError as error:
        graph = graph_of(model)
        needed = new_cache(model, batch=batch, max_model_len=tokens, device="meta")
        size = gib(sum(tensor.numel() * tensor.element_size() for tensor in needed.values()))
        raise ArchcError(
            f"{graph.name}: caches of {size} for {batch:,} sequences of {tokens:,} tokens can't be had; take fewer of "
            "either"
        ) from error


def _drawer(sampling: Sampling, sampler: Sampler, vocab_size: int) -> Callable[[Tensor], Array]:
    """Logits (batch, rows of the table) to the next ids (batch,); where they are those of the largest, on the device."""
    if sampling.is_argmax:
        return lambda logits: logits[:, :vocab_size].argmax(-1).cpu().numpy()
    return lambda logits: sampler.draw(logits.float().cpu().numpy())


def _prefill(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    cache: dict[str, Tensor],
    chunk: int,
    progress: Progress | None,
) -> Tensor:
    """Feed the prompts, padded on the right. Returns the logits of each one's last token, (batch, rows of the table)."""
    device = next(iter(model.parameters())).device
    lengths = np.array([len(prompt) for prompt in prompts])
    longest, found = int(lengths.max()), None
    for start in range(0, longest, chunk):
        past = np.minimum(lengths, start)
        new = np.minimum(lengths, start + chunk) - past
        seq = int(new.max())
        ids = np.zeros((len(prompts), seq), np.int64)
        for row, count in enumerate(new):
            ids[row, :count] = prompts[row][start : start + count]
        # Rows that are as long as the longest are alike in every chunk.
        if int(lengths.min()) == longest:
            step = Step.at(start, seq, device=device)
        else:
            step = Step.ragged(torch.from_numpy(past).to(device), torch.from_numpy(new).to(device), seq)
        logits = model(torch.from_numpy(ids).to(device), step, cache, last_only=True)[:, 0]
        # Of a row that waits, logits mean nothing: those of its last tokens are kept.
        fed = torch.from_numpy(new > 0).to(device).unsqueeze(1)
        found = logits if found is None else torch.where(fed, logits, found)
        if progress is not None:
            progress(int((past + new).sum()), int(lengths.sum()))
    assert found is not None, "a prompt has at least one token"
    return found


def _decode(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    cache: dict[str, Tensor],
    drawn: Array,
    draw: Callable[[Tensor], Array],
) -> Iterator[Array]:
    """The first ids, then those of one step after the other; a row that has ended is fed on, because rows share a call."""
    device = next(iter(model.parameters())).device
    lengths = [len(prompt) for prompt in prompts]
    past, alike = max(lengths), min(lengths) == max(lengths)
    start = torch.tensor(lengths, device=device)
    new = torch.ones_like(start)
    while True:
        yield drawn
        step = Step.at(past, 1, device=device) if alike else Step(past, start.unsqueeze(1), start, new)
        drawn = draw(model(torch.from_numpy(drawn).to(device).unsqueeze(1), step, cache)[:, 0])
        past, start = past + 1, start + 1
