"""Layouts of dense families in transformers: norms on the outputs of branches, and projections that are joined there."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Tensors = dict[str, Tensor]
Rules = tuple[tuple[str, Callable[[str, Tensor], Tensors]], ...]

QUERY, KEY_VALUE = 4 * 16, 2 * 16
"""Rows of Phi-3's queries, and of its keys or values."""


def _layer(name: str) -> str:
    """``layers.N`` of a whole name."""
    return ".".join(name.split(".")[1:3])


def _in_layer(other: str) -> Callable[[str, Tensor], Tensors]:
    return lambda name, tensor: {f"{_layer(name)}.{other}": tensor}


def _query_key_value(name: str, tensor: Tensor) -> Tensors:
    parts = tensor.split((QUERY, KEY_VALUE, KEY_VALUE))
    return {f"{_layer(name)}.mixer.{n}_proj.weight": part for n, part in zip("qkv", parts, strict=True)}


def _gate_then_up(name: str, tensor: Tensor) -> Tensors:
    parts = zip(("gate", "up"), tensor.chunk(2), strict=True)
    return {f"{_layer(name)}.ffn.{n}_proj.weight": part for n, part in parts}


_LAYER = r"model\.layers\.\d+\."
_OUTPUT_NORMS: Rules = (
    (_LAYER + r"post_attention_layernorm\.weight", _in_layer("mixer_output_norm.weight")),
    (_LAYER + r"post_feedforward_layernorm\.weight", _in_layer("ffn_output_norm.weight")),
)
_SANDWICH: Rules = (
    *_OUTPUT_NORMS,
    (_LAYER + r"pre_feedforward_layernorm\.weight", _in_layer("ffn_norm.weight")),
)
_JOINED: Rules = (
    (_LAYER + r"self_attn\.qkv_proj\.weight", _query_key_value),
    (_LAYER + r"mlp\.gate_up_proj\.weight", _gate_then_up),
)

LAYERS: dict[str, Rules] = {
    "gemma2": _SANDWICH,
    "gemma3_text": _SANDWICH,
    "olmo2": _OUTPUT_NORMS,
    "phi3": _JOINED,
    "phi3_long": _JOINED,
}
"""Family -> rules for whole names, tried before those of all families."""
