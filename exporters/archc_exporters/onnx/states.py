"""Names of inputs and outputs; those of caches are derived from the names of a graph's states."""

from __future__ import annotations

import re
from collections import Counter

from archc.graph.graph import Graph

PAST, PRESENT = "past_key_values", "present"
LENGTHS = {
    "input_ids": ("batch", "seq"),
    "past_length": ("batch",),
    "seq_length": ("batch",),
    "kv_length": ("batch",),
    "max_length": (1,),
}
"""The inputs of every file beside its caches, int64: past and valid new tokens a row, past + padded seq a row, its maximum."""
GENAI_INPUTS = {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "total"), "position_ids": ("batch", "seq")}
"""What onnxruntime-genai feeds instead, int64: ones for the tokens that a row holds, and positions of the new ones."""
ENCODER = "encoder_"
"""Begins the name of an input that tells of an encoder's tokens."""
ENCODER_MASK = "encoder_attention_mask"
"""The only one of them that a decoder reads too."""
ENCODER_FILE = "encoder.onnx"
"""Where an encoder lies that a decoder reads, beside ``model.onnx``."""
ROLLING = "window_capacity_"
"""Begins the name of a rolling cache's dimension of rows; the window, which is the least number of them, ends it."""
_STEPS = re.compile(r"^ceil\(\(capacity\)/(?P<tokens>\d+)\)$")
_LAYER = re.compile(r"^(?:(?P<stack>.+)\.)?layers\.(?P<index>\d+)\.(?P<rest>.+)$")


def onnx_state_names(graph: Graph) -> dict[str, str]:
    """State name -> name of its cache input, ``past_key_values.{i}.{ending}``; the output says ``present`` instead.

    Two states of one ending in a layer keep the sub-layer between (``.cross.key``); a stack's name stays in front of
    the number where two stacks have any, so that an encoder's layer 0 and a decoder's differ.
    """
    parts = {name: _parts(name) for name in graph.states()}
    if len({stack[0] if len(stack) > 1 else "" for stack, _, _ in parts.values()}) == 1:
        parts = {name: (stack[-1:], between, ending) for name, (stack, between, ending) in parts.items()}
    endings = Counter((stack, ending) for stack, _, ending in parts.values())
    sub_layers = Counter((stack, between[:1], ending) for stack, between, ending in parts.values())
    names: dict[str, str] = {}
    for name, (stack, between, ending) in parts.items():
        if endings[stack, ending] == 1:
            between = ()
        elif sub_layers[stack, between[:1], ending] == 1:
            between = between[:1]
        names[name] = ".".join((PAST, *stack, *between, ending))
    assert len(set(names.values())) == len(names), f"cache names collide: {sorted(names.values())}"
    return names


def tokens_a_row(dim: int | str) -> int | None:
    """Tokens to a row of a dimension of a cache: 1 for ``capacity``, n for ``ceil((capacity)/n)``; None where it doesn't grow."""
    if dim == "capacity":
        return 1
    match = _STEPS.match(str(dim))
    return int(match["tokens"]) if match else None


def present_name(past_name: str) -> str:
    """The cache output that belongs to a cache input."""
    return PRESENT + past_name.removeprefix(PAST)


def _parts(name: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """(stack and layer number, scopes between, ending) of a state's full name."""
    match = _LAYER.match(name)
    if match is None:
        *between, ending = name.split(".")
        return (), tuple(between), ending
    stack = (match["stack"], match["index"]) if match["stack"] else (match["index"],)
    *between, ending = match["rest"].split(".")
    return stack, tuple(between), ending
