"""Layouts of gated DeltaNet and of gated attention in transformers: what is joined there is apart in archc."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Tensors = dict[str, Tensor]
Rules = tuple[tuple[str, Callable[[str, Tensor], Tensors]], ...]

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 12, 16
"""Of every family here: fewer heads of keys than of values, and keys narrower than values."""

GROUP = VALUE_HEADS // KEY_HEADS
KEYS, VALUES = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM


def _renamed(other: str) -> Callable[[str, Tensor], Tensors]:
    return lambda name, tensor: {other: tensor}


def _query_key_value_gate_a_key_head(name: str, tensor: Tensor) -> Tensors:
    """Rows [q | k | v of its value heads | gate of the same] for each key head."""
    sizes = (KEY_DIM, KEY_DIM, GROUP * VALUE_DIM, GROUP * VALUE_DIM)
    parts = tensor.unflatten(0, (KEY_HEADS, -1)).split(sizes, dim=1)
    return {f"{n}_proj.weight": part.flatten(0, 1) for n, part in zip("qkvg", parts, strict=True)}


def _beta_decay_a_key_head(name: str, tensor: Tensor) -> Tensors:
    beta, decay = tensor.unflatten(0, (KEY_HEADS, -1)).split(GROUP, dim=1)
    return {"b_proj.weight": beta.flatten(0, 1), "a_proj.weight": decay.flatten(0, 1)}


def _query_key_value(name: str, tensor: Tensor) -> Tensors:
    parts = tensor.split((KEYS, KEYS, VALUES))
    return {f"{n}_proj.weight": part for n, part in zip("qkv", parts, strict=True)}


def _convolution(name: str, tensor: Tensor) -> Tensors:
    parts = tensor.split((KEYS, KEYS, VALUES))
    return {f"conv.{n}_conv1d.weight": part for n, part in zip("qkv", parts, strict=True)}


def _query_gate_a_head(name: str, tensor: Tensor) -> Tensors:
    """Rows [q | gate] for each of four heads."""
    query, gate = tensor.unflatten(0, (4, -1)).chunk(2, dim=1)
    return {"q_proj.weight": query.flatten(0, 1), "gate_proj.weight": gate.flatten(0, 1)}


_DECAY: Rules = (
    (r"conv1d\.weight", _convolution),
    (r"A_log", _renamed("forget_gate.A_log")),
    (r"dt_bias", _renamed("forget_gate.dt_bias")),
)
_QWEN: Rules = (
    *_DECAY,
    (r"norm\.weight", _renamed("o_norm.weight")),
    (r"out_proj\.weight", _renamed("o_proj.weight")),
    (r"q_proj\.weight", _query_gate_a_head),
)

MIXERS: dict[str, Rules] = {
    "qwen3_next": (
        *_QWEN,
        (r"in_proj_qkvz\.weight", _query_key_value_gate_a_key_head),
        (r"in_proj_ba\.weight", _beta_decay_a_key_head),
    ),
    "qwen3_5": (
        *_QWEN,
        (r"in_proj_qkv\.weight", _query_key_value),
        (r"in_proj_z\.weight", _renamed("g_proj.weight")),
        (r"in_proj_([ab])\.weight", lambda name, tensor: {f"{name[8]}_proj.weight": tensor}),
    ),
    "olmo_hybrid": (*_DECAY, (r"[abg]_proj\.weight", lambda name, tensor: {name: tensor})),
}
"""Family -> rules for its mixers, tried before those of all families."""

LAYERS: dict[str, Rules] = {
    # The third layer is the attention one: it norms what its branches give, under a name that elsewhere is an input's.
    "olmo_hybrid": (
        (r"model\.layers\.2\.post_attention_layernorm\.weight", _renamed("layers.2.mixer_output_norm.weight")),
        (r"model\.layers\.2\.post_feedforward_layernorm\.weight", _renamed("layers.2.ffn_output_norm.weight")),
    ),
}
"""Family -> rules for whole names, likewise."""
