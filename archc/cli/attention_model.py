"""A text, the model that reads it, and what its maps come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archc.attention_maps.maps import AttentionMap, attention_maps
from archc.cli.generate_model import opened
from archc.cli.writing_options import ids_of
from archc.errors import ArchcError, CheckFailedError
from archc.generation.text import Text
from archc.graph.graph import Graph
from archc.torch_backend.build import graph_of

LARGEST_DIFFERENCE = 1e-3
"""Between a map times its values and the leaf's output, over the largest output: float32 sums in another order."""
_IDS = ("input_ids", "encoder_input_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says is read."""

    text: str | None
    ids: str | None
    decoder_text: str | None
    decoder_ids: str | None
    prefix_length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The maps of a text, with the tokens that stand at their axes."""

    name: str
    device: str
    is_random: bool
    tokens: tuple[str, ...]
    source_tokens: tuple[str, ...]
    """Of an encoder that is read by a decoder; else none."""
    maps: list[AttentionMap]
    head: int | None
    has_layer: bool

    def labels(self, one: AttentionMap) -> tuple[Sequence[str], Sequence[str]]:
        """(rows, columns) of a map in words."""
        own = self.source_tokens if one.stack == "encoder" and self.source_tokens else self.tokens
        columns = self.source_tokens if one.reads_source else own
        if one.spans is not None:
            columns = [own[a] if b - a == 1 else f"{a}-{b - 1}" for a, b in one.spans]
        return own, columns

    def to_json(self) -> dict[str, Any]:
        """Everything but the pictures."""
        return {
            "name": self.name,
            "dtype": "float32",
            "device": self.device,
            "random_weights": self.is_random,
            "tokens": list(self.tokens),
            "source_tokens": list(self.source_tokens),
            "maps": [self._told(one) for one in self.maps],
        }

    def _told(self, one: AttentionMap) -> dict[str, Any]:
        heads = [
            {"head": number, "entropy_nats": head.entropy, "distance_tokens": head.distance, "first_share": head.first}
            for number, head in enumerate(one.heads)
            if self.head in (None, number)
        ]
        return {
            "path": one.path,
            "op": one.op_name,
            "stack": one.stack or None,
            "layer": one.layer,
            "branch": one.branch or None,
            "rows": one.mean.shape[0],
            "columns": one.mean.shape[1],
            "reads_source": one.reads_source,
            "per_channel": one.are_channels,
            "difference": one.difference,
            "heads": heads,
        }


def look(
    source: str,
    overrides: Sequence[str],
    given: Given,
    *,
    layer: tuple[str | None, int] | None,
    head: int | None,
    weights: str | None,
    tokenizer: str | None,
    device: str | None,
    seed: int,
) -> Looked:
    """The maps of a text in the model that ``source`` names.

    Raises:
        ArchcError: the model can't be had, reads no tokens, or the text is too long or has ids that it does not know.
        CheckFailedError: a map times its values is not what its leaf gives.
    """
    has_weights = weights is not None or Path(source).is_dir()
    has_text = given.text is not None or given.decoder_text is not None
    model = opened(
        source,
        overrides,
        weights=weights,
        tokenizer=tokenizer,
        device=device,
        dtype="float32",
        # Where weights are random, bytes will do; what is trained reads its own tokens only.
        needs_text=tokenizer is not None or (has_weights and has_text),
        continues=False,
        seed=seed,
    )
    graph = graph_of(model.model)
    if next(iter(graph.inputs)) not in _IDS:
        raise ArchcError(f"{model.name} reads {next(iter(graph.inputs))}; maps are drawn of texts")
    if not graph.reads_encoder and (given.decoder_text is not None or given.decoder_ids is not None):
        raise ArchcError(f"{model.name} has no decoder that reads an encoder, so it is given no decoder's text")
    if given.prefix_length and "prefix_length" not in graph.inputs:
        raise ArchcError(f"{model.name} has no prefix: the mask of its stack is {graph.mask}")
    read = _ids(given.text, given.ids, model.source, graph.source_vocab_size or graph.vocab_size)
    tokens, source_tokens, source_ids = read, list[int](), None
    if graph.reads_encoder:
        tokens, source_tokens = _decoder_ids(graph, given, model.text), read
        source_ids = _tensor(read, model.device)
    found = attention_maps(
        model.model,
        _tensor(tokens, model.device),
        encoder_input_ids=source_ids,
        prefix_length=given.prefix_length,
        layer=layer,
        keeps_heads=layer is not None,
    )
    _check(found, head)
    return Looked(
        name=model.name,
        device=model.device,
        is_random=model.is_random,
        tokens=_labels(
            tokens,
            model.text,
            has_bytes=(given.decoder_text if graph.reads_encoder else given.text) is not None,
        ),
        source_tokens=_labels(source_tokens, model.source, has_bytes=given.text is not None),
        maps=found,
        head=head,
        has_layer=layer is not None,
    )


def _tensor(ids: Sequence[int], device: str) -> Tensor:
    return torch.tensor([list(ids)], dtype=torch.int64, device=device)


def _ids(text: str | None, ids: str | None, tokenizer: Text | None, vocab_size: int | None) -> list[int]:
    """Ids of a text: by the tokenizer, or its bytes.

    Raises:
        ArchcError: there are none, or the model does not know one.
    """
    try:
        found = ids_of(ids) if ids is not None else None
    except ValueError:
        raise ArchcError(f"ids are written as in 1,2,3 (found {ids!r})") from None
    if found is None:
        assert text is not None
        found = list(text.encode()) if tokenizer is None else tokenizer.encode(text)
    if not found:
        raise ArchcError("the text has no tokens")
    unknown = [number for number in found if number < 0 or (vocab_size is not None and number >= vocab_size)]
    if unknown:
        raise ArchcError(f"the model has ids from 0 to {(vocab_size or 0) - 1}, and the text has {unknown[0]}")
    return found


def _decoder_ids(graph: Graph, given: Given, tokenizer: Text | None) -> list[int]:
    """What the decoder reads: the id that it begins with, where one is known, before the text; ids as they are given."""
    if given.decoder_ids is not None:
        return _ids(None, given.decoder_ids, None, graph.vocab_size)
    if given.decoder_text is None:
        raise ArchcError(f"{graph.name} has a decoder that reads an encoder; --decoder-text says what it has written")
    written = _ids(given.decoder_text, None, tokenizer, graph.vocab_size)
    return written if graph.start_id is None else [graph.start_id, *written]


def _labels(ids: Sequence[int], tokenizer: Text | None, *, has_bytes: bool) -> tuple[str, ...]:
    """Each id in words: its piece of text, a byte's character, or its number."""
    if tokenizer is not None:
        return tuple(tokenizer.decode([number]) or str(number) for number in ids)
    return tuple(chr(number) if has_bytes and 32 <= number < 127 else str(number) for number in ids)


def _check(maps: Sequence[AttentionMap], head: int | None) -> None:
    for one in maps:
        if not one.difference <= LARGEST_DIFFERENCE:
            raise CheckFailedError(
                f"{one.path}: its map times the values differs from what it gives by {one.difference:.2g} of the largest"
            )
    if head is not None and all(head >= len(one.heads) for one in maps):
        raise ArchcError(f"the layer has {max(len(one.heads) for one in maps)} heads, numbered from 0; found {head}")
