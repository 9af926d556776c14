"""A file's outputs against those of the torch model of the same graph, however the tokens are cut into calls.

An exporter hands a written file to a judge as a ``WrittenFile``; nothing here knows how it was written or what runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from archc.graph.graph import Graph
from archc.testing.feeding import SOURCE_LENGTH, Given, feed, short
from archc.testing.whole import width_of

Calls = Sequence[tuple[int, ...]]
"""Valid new tokens of each row, a call after the other."""


class WrittenFile(Protocol):
    """What an exporter says of a file that it can run.

    ``graph`` is what the file computes, ``dtype`` that of its weights and activations. ``read`` gives a weight by name, as the
    file's dtype holds it, in float32; a file that is ``quantized`` holds integers for it. ``run`` takes conversations by name,
    each a list of calls (tokens (batch, seq) right-padded, valid tokens of each row), and gives the outputs of every call:
    (batch, seq, width), or (batch, 1, width) of each row's last valid token where ``prune_head``. ``given`` are inputs that
    stay the same from call to call. A file without ``ragged_prompts`` wants rows of one length where they begin. ``encode``
    takes the inputs of a file that sees all tokens at once, by a name of the pass, and gives all outputs by name.
    """

    @property
    def graph(self) -> Graph: ...
    @property
    def dtype(self) -> str: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def quantized(self) -> bool: ...
    @property
    def prune_head(self) -> bool: ...
    @property
    def ragged_prompts(self) -> bool: ...
    @property
    def read(self) -> Callable[[str], Any]: ...
    @property
    def run(self) -> Callable[..., Mapping[str, Sequence[Any]]]: ...
    @property
    def encode(self) -> Callable[..., Mapping[str, Mapping[str, Any]]]: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two sets of outputs: the largest and the mean absolute difference, over how many tokens."""

    max_abs: float
    mean_abs: float
    tokens: int


def conversations(ids: Tensor, ways: Mapping[str, Calls]) -> dict[str, list[tuple[Any, Any]]]:
    """``ids`` (batch, length) cut into right-padded calls, for every way a conversation."""
    return {name: list(_cut(ids, calls)) for name, calls in ways.items()}


def _cut(ids: Tensor, calls: Calls) -> Sequence[tuple[Any, Any]]:
    done = [0] * ids.shape[0]
    cut: list[tuple[Any, Any]] = []
    for counts in calls:
        # Padding is some token, so that one which is let in shows.
        padded = ids[: len(counts), :1].repeat(1, max(counts))
        for row, count in enumerate(counts):
            padded[row, :count] = ids[row, done[row] : done[row] + count]
            done[row] += count
        cut.append((padded.numpy(), torch.tensor(counts).numpy()))
    return cut


def still_inputs(graph: Graph, given: Given | None = None) -> dict[str, dict[str, Tensor]]:
    """What stays the same from call to call, a name each way: an encoder's tokens, with padding too; a prefix's length."""
    given = feed(graph) if given is None else given
    if not given.source:
        return {"": {name: given.always[name] for name in given.always if name in graph.inputs}}
    found = {"": given}
    if "encoder_attention_mask" in graph.inputs:
        counts = short(SOURCE_LENGTH)
        for side in ("right", "left"):
            found[f"source padded on the {side}"] = given.padded_source(counts, left=side == "left")
    return {name: {**each.source, **each.always} for name, each in found.items()}


def torch_outputs(graph: Graph, model: nn.Module, ids: Tensor, still: Mapping[str, Tensor] | None = None) -> Tensor:
    """What torch gives for all of ``ids`` at once, without a cache: (batch, length, width), or a text (batch, width).

    As wide as a file's; of several outputs the first. ``still`` are further inputs.
    """
    with torch.no_grad():
        found = model(ids, **(still or {}))
    whole = found if isinstance(found, Tensor) else found[0]
    name = next(iter(graph.outputs))
    return whole[..., : width_of(graph, name)]


def difference(
    outputs: Sequence[Any], calls: Calls, whole: Tensor, *, prune_head: bool = False, length: int | None = None
) -> Difference:
    """How far a file's outputs, one array a call, are from the rows of ``whole`` (batch, length, width) that they stand for.

    Of what is one for a text, (batch, width), the call counts that brings a row's last of ``length`` tokens.

    Raises:
        AssertionError: an output has another shape.
    """
    done, tokens, worst, total, elements = [0] * whole.shape[0], 0, 0.0, 0.0, 0
    for output, counts in zip(outputs, calls, strict=True):
        for row, count in enumerate(counts):
            done[row] += count
            is_text = whole.dim() == 2
            if not count or (is_text and done[row] != length):
                continue
            shown = 1 if prune_head or is_text else count
            got = torch.tensor(output[row] if is_text else output[row, :shown]).float()
            want = whole[row] if is_text else whole[row, done[row] - shown : done[row]]
            assert got.shape == want.shape, f"the file gives {tuple(got.shape)}, torch {tuple(want.shape)}"
            apart = (got - want).abs()
            worst = max(worst, float(apart.max()))
            total, elements, tokens = total + float(apart.double().sum()), elements + apart.numel(), tokens + shown
    return Difference(worst, total / max(elements, 1), tokens)
