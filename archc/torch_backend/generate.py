"""``archc.generate(model, prompts)``: a torch model that writes, over one cache that is made once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archc.errors import ArchcError
from archc.generation.result import Generation, Token
from archc.generation.rows import DEFAULT_CHUNK_TOKENS, DEFAULT_NEW_TOKENS, Prompt, Rows, listed, prompt_ids, unpadded
from archc.generation.sampling import Array, Sampler, Sampling, Seed
from archc.generation.text import Text, read_tokenizer
from archc.graph.graph import Graph
from archc.torch_backend.build import graph_of, new_cache
from archc.torch_backend.prefill import Fed, Progress, feed_encoder, feed_prompts
from archc.torch_backend.step import Step
from archc.units import gib


@torch.inference_mode()
def generate(
    model: nn.Module,
    prompts: Prompt | Sequence[Prompt],
    *,
    tokenizer: Any = None,
    source_tokenizer: Any = None,
    attention_mask: Any = None,
    decoder_ids: Sequence[int] | None = None,
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

    A decoder with an encoder answers: the prompt is the encoder's, and the decoder starts from ``decoder_ids``, by default the
    spec's ``bos_token_id``, else its ``pad_token_id``. ``source_tokenizer`` reads prompts where the encoder has one of its own.
    In a stack with the mask ``prefix`` the prompt is the prefix.

    ``model`` is what ``archc.build`` made, with its weights. ``tokenizer``, which texts need, is a tokenizer.json or a
    ``tokenizers.Tokenizer``. ``max_new_tokens`` defaults to 128 or the room that is left. ``chunk_size`` tokens of a prompt
    are fed at a time. ``on_token`` sees every token when it is drawn, ``progress`` the prefill. Ids beyond the tokenizer's,
    which pad a table, are never drawn. ``attention_mask`` (batch, tokens) is 0 where prompts that are one batch of ids are
    padded, on whatever side.

    Raises:
        ArchcError: a prompt is empty, holds ids that the model has not, or does not fit with the new tokens.
    """
    graph = graph_of(model)
    size = _vocab_size(graph, model)
    text = as_text(tokenizer)
    source = as_text(source_tokenizer) or text
    hint = f"{graph.name} has no tokenizer here, so a prompt is ids; hand over a tokenizer.json for texts"
    given = listed(prompts) if attention_mask is None else unpadded(prompts, attention_mask)
    ids = prompt_ids(given, text=source, vocab_size=graph.source_vocab_size or size, hint=hint)
    if chunk_size < 1:
        raise ArchcError(f"chunk_size should be at least 1 (found {chunk_size})")
    first = _first_ids(graph, decoder_ids)
    longest = max(map(len, ids))
    _check_source(graph, None if first is None else longest)
    new_tokens = _new_tokens(graph, longest if first is None else len(first), max_new_tokens)
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    # What a row has written is what its decoder was given: an encoder's text is another one.
    written = ids if first is None else [first] * len(ids)
    draw = _drawer(sampling, Sampler(sampling, written, vocab_size=size), size)
    rows = Rows(ids, text, stop_ids=stop_ids, new_tokens=new_tokens, on_token=on_token)
    cache = _cache(model, len(ids), max(map(len, written)) + new_tokens, source_len=longest)
    start = time.perf_counter()
    if first is not None:
        fed = feed_encoder(model, ids, first, cache, progress=progress)
    else:
        is_prefix = graph.mask == "prefix"
        fed = feed_prompts(model, ids, cache, chunk=chunk_size, is_prefix=is_prefix, progress=progress)
    drawn_first = draw(fed.logits)
    middle = time.perf_counter()
    for drawn in _decode(model, fed, cache, drawn_first, draw):
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
    if graph.mask == "bidirectional":
        raise ArchcError(
            f"{graph.name} is an encoder: it sees a text as a whole and continues none; model(ids, attention_mask) gives its "
            f"{', '.join(graph.outputs)}"
        )
    if "logits" not in graph.outputs or graph.vocab_size is None:
        raise ArchcError(
            f"{graph.name} ends in {', '.join(graph.outputs)}, not in logits: there is nothing to draw from"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ArchcError(f"{graph.name} is on the meta device, so it has no weights; build it on another")
    return graph.vocab_size


def _first_ids(graph: Graph, given: Sequence[int] | None) -> list[int] | None:
    """What a decoder that reads an encoder is given before it writes; None where there is no encoder."""
    if not graph.reads_encoder:
        if given is not None:
            raise ArchcError(f"{graph.name} reads no encoder, so decoder_ids belong to the prompt")
        return None
    if "encoder_input_ids" not in graph.inputs:
        others = ", ".join(name for name in graph.inputs if name.startswith("encoder_"))
        raise ArchcError(f"{graph.name} reads {others} and no text, so there is no prompt to answer")
    if given is None:
        if graph.start_id is None:
            raise ArchcError(
                f"{graph.name} does not say from which id its decoder starts; state bos_token_id, or pad_token_id as in T5, "
                "or give decoder_ids"
            )
        return [graph.start_id]
    first, size = [int(one) for one in given], graph.vocab_size or 0
    if not first or any(not 0 <= one < size for one in first):
        raise ArchcError(f"decoder_ids should be one id or more from 0 to {size - 1} (found {first})")
    return first


def _check_source(graph: Graph, tokens: int | None) -> None:
    limit = graph.max_position_embeddings
    if tokens is not None and limit is not None and tokens > limit:
        raise ArchcError(
            f"a prompt of {tokens:,} tokens is more than the {limit:,} of max_position_embeddings that the encoder takes"
        )


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


def _cache(model: nn.Module, batch: int, tokens: int, *, source_len: int) -> dict[str, Tensor]:
    try:
        return new_cache(model, batch=batch, max_model_len=tokens, source_len=source_len)
    except RuntimeError as error:
        graph = graph_of(model)
        needed = new_cache(model, batch=batch, max_model_len=tokens, source_len=source_len, device="meta")
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


def _decode(
    model: nn.Module, fed: Fed, cache: dict[str, Tensor], drawn: Array, draw: Callable[[Tensor], Array]
) -> Iterator[Array]:
    """The first ids, then those of one step after the other; a row that has ended is fed on, because rows share a call."""
    device = next(iter(model.parameters())).device
    past, alike = max(fed.lengths), min(fed.lengths) == max(fed.lengths)
    start = torch.tensor(fed.lengths, device=device)
    new = torch.ones_like(start)
    while True:
        yield drawn
        step = Step.at(past, 1, device=device) if alike else Step(past, start.unsqueeze(1), start, new)
        drawn = draw(model(torch.from_numpy(drawn).to(device).unsqueeze(1), step, cache, **fed.more)[:, 0])
        past, start = past + 1, start + 1
