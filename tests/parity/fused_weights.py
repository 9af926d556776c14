"""Layouts of families whose queries, keys and values are one matrix in transformers, and whose names are of their own."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import Tensor

Tensors = dict[str, Tensor]
Rules = tuple[tuple[str, Callable[[str, Tensor], Tensors]], ...]


def _named(other: str) -> Callable[[str, Tensor], Tensors]:
    """The same tensor under archc's name for its module; weight stays weight, bias bias."""
    return lambda name, tensor: {_within(name, other): tensor}


def _within(name: str, other: str) -> str:
    layer = re.search(r"\.(?:h|layers)\.(\d+)\.", name)
    prefix = f"layers.{layer[1]}." if layer else ""
    return f"{prefix}{other}.{name.rpartition('.')[2]}"


def _by_group(groups: int, queries: int) -> Callable[[str, Tensor], Tensors]:
    """Rows of a group of heads stand together: its queries, then its key, then its value."""

    def split(name: str, tensor: Tensor) -> Tensors:
        rows = tensor.unflatten(0, (groups, queries + 2, -1))
        parts = (rows[:, :-2], rows[:, -2:-1], rows[:, -1:])
        return {_within(name, f"mixer.{n}_proj"): part.flatten(0, 2) for n, part in zip("qkv", parts, strict=True)}

    return split


def _columns_of_q_k_v(name: str, tensor: Tensor) -> Tensors:
    """GPT-2 stores matrices as inputs x outputs: columns of all queries, all keys, all values."""
    parts = zip("qkv", tensor.chunk(3, dim=-1), strict=True)
    return {_within(name, f"mixer.{n}_proj"): part.T if part.dim() == 2 else part for n, part in parts}


def _transposed(other: str) -> Callable[[str, Tensor], Tensors]:
    return lambda name, tensor: {_within(name, other): tensor.T if tensor.dim() == 2 else tensor}


_BOTH = r"\.(weight|bias)"


def _layers(scope: str, query_key_value: Callable[[str, Tensor], Tensors], attention: str) -> Rules:
    """What GPT-NeoX, BLOOM and Falcon share."""
    return (
        (rf"{scope}{attention}\.query_key_value{_BOTH}", query_key_value),
        (rf"{scope}{attention}\.dense{_BOTH}", _named("mixer.o_proj")),
        (rf"{scope}mlp\.dense_h_to_4h{_BOTH}", _named("ffn.up_proj")),
        (rf"{scope}mlp\.dense_4h_to_h{_BOTH}", _named("ffn.down_proj")),
        (rf"{scope}(input_layernorm|ln_attn){_BOTH}", _named("mixer_norm")),
        (rf"{scope}(post_attention_layernorm|ln_mlp){_BOTH}", _named("ffn_norm")),
    )


_H = r"transformer\.h\.\d+\."
_OUTSIDE: Rules = (
    (r"(transformer\.(word_embeddings|wte)|gpt_neox\.embed_in)\.weight", _named("embed_tokens")),
    (rf"transformer\.word_embeddings_layernorm{_BOTH}", _named("embed_norm")),
    (r"transformer\.wpe\.weight", _named("embed_positions")),
    (rf"(transformer\.ln_f|gpt_neox\.final_layer_norm){_BOTH}", _named("norm")),
)
_GPT2: Rules = (
    (rf"{_H}attn\.c_attn{_BOTH}", _columns_of_q_k_v),
    (rf"{_H}attn\.c_proj{_BOTH}", _transposed("mixer.o_proj")),
    (rf"{_H}mlp\.c_fc{_BOTH}", _transposed("ffn.up_proj")),
    (rf"{_H}mlp\.c_proj{_BOTH}", _transposed("ffn.down_proj")),
    (rf"{_H}ln_1{_BOTH}", _named("mixer_norm")),
    (rf"{_H}ln_2{_BOTH}", _named("ffn_norm")),
)
_BLOOM = _layers(_H, _by_group(6, 1), "self_attention")

LAYERS: dict[str, Rules] = {
    "gpt2": (*_GPT2, *_OUTSIDE),
    "gpt_neox": (*_layers(r"gpt_neox\.layers\.\d+\.", _by_group(4, 1), "attention"), *_OUTSIDE),
    "bloom": (*_BLOOM, *_OUTSIDE),
    "bloom_normed": (*_BLOOM, *_OUTSIDE),
    "falcon": (*_layers(_H, _by_group(1, 4), "self_attention"), *_OUTSIDE),
    "falcon_new_arch": (*_layers(_H, _by_group(2, 2), "self_attention"), *_OUTSIDE),
    "falcon_alibi": (*_layers(_H, _by_group(4, 1), "self_attention"), *_OUTSIDE),
}
"""Family -> rules for whole names, tried before those of all families."""
