"""Layouts of families in transformers whose norms have other names or whose projections are joined there."""

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


def _experts_gate_then_up(name: str, tensor: Tensor) -> Tensors:
    """Llama 4 (E, D, 2I): the gate's columns, then up's, and products are x W."""
    parts = zip(("gate", "up"), tensor.chunk(2, dim=2), strict=True)
    return {f"{_layer(name)}.ffn.experts.{n}_proj": part.transpose(1, 2) for n, part in parts}


def _experts_down(name: str, tensor: Tensor) -> Tensors:
    return {f"{_layer(name)}.ffn.experts.down_proj": tensor.transpose(1, 2)}


def _shared(name: str, tensor: Tensor) -> Tensors:
    return {f"{_layer(name)}.ffn.shared_experts.{name.split('.')[-2]}.weight": tensor}


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
_LLAMA4: Rules = (
    (_LAYER + r"feed_forward\.experts\.gate_up_proj", _experts_gate_then_up),
    (_LAYER + r"feed_forward\.experts\.down_proj", _experts_down),
    (_LAYER + r"feed_forward\.router\.weight", _in_layer("ffn.router.weight")),
    (_LAYER + r"feed_forward\.shared_expert\.(gate|up|down)_proj\.weight", _shared),
)
_OPT_LAYER = r"model\.decoder\.layers\.\d+\."


def _opt(other: str) -> Callable[[str, Tensor], Tensors]:
    """A weight or bias of OPT's decoder under archc's name for its module."""
    return lambda name, tensor: {f"layers.{name.split('.')[3]}.{other}.{name.rpartition('.')[2]}": tensor}


def _whole(other: str) -> Callable[[str, Tensor], Tensors]:
    return lambda name, tensor: {other: tensor}


_OPT: Rules = (
    (r"model\.decoder\.embed_tokens\.weight", _whole("embed_tokens.weight")),
    (r"model\.decoder\.embed_positions\.weight", _whole("embed_positions.weight")),
    *((rf"{_OPT_LAYER}self_attn\.{n}_proj\.(weight|bias)", _opt(f"mixer.{n}_proj")) for n in "qkv"),
    (_OPT_LAYER + r"self_attn\.out_proj\.(weight|bias)", _opt("mixer.o_proj")),
    (_OPT_LAYER + r"self_attn_layer_norm\.(weight|bias)", _opt("mixer_norm")),
    (_OPT_LAYER + r"fc1\.(weight|bias)", _opt("ffn.up_proj")),
    (_OPT_LAYER + r"fc2\.(weight|bias)", _opt("ffn.down_proj")),
    (_OPT_LAYER + r"final_layer_norm\.(weight|bias)", _opt("ffn_norm")),
    *(
        (rf"model\.decoder\.{theirs}\.{leaf}", _whole(f"{ours}.{leaf}"))
        for theirs, ours in (("final_layer_norm", "norm"), ("project_in", "embed_proj"), ("project_out", "head_proj"))
        for leaf in ("weight", "bias")
    ),
)

LAYERS: dict[str, Rules] = {
    "gemma2": _SANDWICH,
    "gemma3_text": _SANDWICH,
    "llama4": _LLAMA4,
    "minimax_m2": ((_LAYER + r"mlp\.e_score_correction_bias", _in_layer("ffn.router.e_score_correction_bias")),),
    "olmo2": _OUTPUT_NORMS,
    "opt": _OPT,
    "opt_prenorm": _OPT,
    "phi3": _JOINED,
    "phi3_long": _JOINED,
}
"""Family -> rules for whole names, tried before those of all families."""
