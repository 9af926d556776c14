"""Files and models that see all their tokens in one call: what they are fed, and their outputs side by side.

Rows are padded on the right and on the left; what a file gives for padding is nobody's and is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from archc.graph.graph import Graph
from archc.testing.feeding import LENGTH, Given, by_token, feed, short


def passes(graph: Graph, length: int = LENGTH) -> dict[str, Given]:
    """The ways to feed a graph ``length`` tokens, by name; pictures have no padding."""
    given = feed(graph, length)
    found = {"whole": given}
    if "attention_mask" in graph.inputs and length > 1:
        for side in ("right", "left"):
            found[f"padded on the {side}"] = given.padded(short(length), left=side == "left")
    return found


def feeds_of(graph: Graph, given: Given) -> dict[str, Any]:
    """Arrays for the inputs of a file, the mask of padding among them."""
    tensors = {next(iter(graph.inputs)): given.main, **given.by_token, **given.source, **given.always}
    if "attention_mask" in graph.inputs and "attention_mask" not in tensors:
        tensors["attention_mask"] = torch.ones(given.main.shape[:2], dtype=torch.int64)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def torch_rows(graph: Graph, model: nn.Module, given: Given) -> dict[str, Tensor]:
    """Each output of the model as rows (tokens or texts, width), as wide as a file's, padding left out."""
    with torch.no_grad():
        outputs = given.run(model)
    return {name: rows_of(graph, name, given, output) for name, output in zip(graph.outputs, outputs, strict=True)}


def file_rows(graph: Graph, outputs: Mapping[str, Any], given: Given) -> dict[str, Tensor]:
    """The same of a file's outputs."""
    return {name: rows_of(graph, name, given, torch.tensor(outputs[name]).float()) for name in graph.outputs}


def rows_of(graph: Graph, name: str, given: Given, output: Tensor) -> Tensor:
    """An output as rows (tokens or texts, width), padding left out, ids that stand for nothing too."""
    has_tokens = dict(zip(graph.outputs, by_token(graph), strict=True))[name]
    mask = given.always.get("attention_mask")
    rows = output[mask.bool()] if has_tokens and mask is not None else output.flatten(0, -2)
    return rows[:, : width_of(graph, name)]


def width_of(graph: Graph, name: str) -> int:
    """How wide a file's output is: rows of a table beyond the vocabulary are no id's, and are left out."""
    value = graph.outputs[name]
    if value.axis != "vocab" or graph.vocab_size is None:
        return value.width
    return min(value.width, graph.vocab_size)
