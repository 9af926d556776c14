"""From transformers' run-time tensors to archc's names and layouts, exactly: nothing left over, nothing left empty."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from tests.parity.compressed import LAYERS as COMPRESSED_LAYERS
from tests.parity.delta_weights import LAYERS, MIXERS
from tests.parity.dense_weights import LAYERS as DENSE_LAYERS
from tests.parity.fused_weights import LAYERS as FUSED_LAYERS
from tests.parity.jamba import LAYERS as JAMBA_LAYERS
from tests.parity.lightning import LAYERS as LIGHTNING_LAYERS
from tests.parity.mamba_weights import LAYERS as MAMBA_LAYERS

Tensors = dict[str, Tensor]


def _gate_rows_then_up_rows(name: str, tensor: Tensor) -> Tensors:
    """(E, 2I, D): the gate's rows, then up's."""
    gate, up = tensor.chunk(2, dim=1)
    return {"gate_proj": gate, "up_proj": up}


def _gate_and_up_columns_alternate(name: str, tensor: Tensor) -> Tensors:
    """gpt-oss (E, D, 2I): even columns are the gate's, odd ones up's, and products are x W."""
    return {"gate_proj": tensor[..., 0::2].transpose(1, 2), "up_proj": tensor[..., 1::2].transpose(1, 2)}


def _gate_and_up_biases_alternate(name: str, tensor: Tensor) -> Tensors:
    return {"gate_proj_bias": tensor[..., 0::2], "up_proj_bias": tensor[..., 1::2]}


def _transposed(name: str, tensor: Tensor) -> Tensors:
    return {name: tensor.transpose(1, 2)}


def _same(name: str, tensor: Tensor) -> Tensors:
    return {name: tensor}


def _named(other: str) -> Callable[[str, Tensor], Tensors]:
    return lambda name, tensor: {other: tensor}


def _three_convolutions(name: str, tensor: Tensor) -> Tensors:
    """One convolution over [q | k | v], all three as wide."""
    return {f"conv.{stream}_conv1d.weight": part for stream, part in zip("qkv", tensor.chunk(3, dim=0), strict=True)}


def _flat_decay(name: str, tensor: Tensor) -> Tensors:
    """(1, 1, H, 1) to (H,)."""
    return {name: tensor.flatten()}


_DENSE = r"(gate|up|down)_proj\.(weight|bias)"

_MIXER = (
    (r"[qkvo]_proj\.(weight|bias)", _same),
    (r"[qk]_norm\.weight", _same),
    (r"sinks", _named("attention.sinks")),
    (r"(q_a_proj|kv_a_proj_with_mqa)\.(weight|bias)", _same),
    (r"(q_a|kv_a)_layernorm\.weight", _same),
    (r"q_b_proj\.weight", _same),
    (r"kv_b_proj\.weight", _named("attention.kv_b_proj.weight")),
    (r"indexer\.(wq_b|wk|k_norm|weights_proj)\.(weight|bias)", _same),
    (r"conv1d\.weight", _three_convolutions),
    (r"forget_gate\.A_log", _flat_decay),
    (r"forget_gate\.dt_bias", _same),
    (r"forget_gate\.f_[ab]_proj\.weight", lambda name, tensor: {name.removeprefix("forget_gate."): tensor}),
    (r"(b|g_a|g_b)_proj\.weight", _same),
    (r"o_norm\.weight", _same),
)

_FFN = (
    (_DENSE, _same),
    (rf"shared_experts\.{_DENSE}", _same),
    (rf"shared_expert\.{_DENSE}", lambda name, tensor: {name.replace("expert.", "experts.", 1): tensor}),
    (r"shared_expert_gate\.weight", _named("shared_experts.gate.weight")),
    (r"gate\.weight", _named("router.weight")),
    (r"gate\.e_score_correction_bias", _named("router.e_score_correction_bias")),
    (r"router\.(weight|bias)", _same),
)

_EXPERTS = (
    (r"gate_up_proj", _gate_rows_then_up_rows),
    (r"down_proj", _same),
)

_GPT_OSS_EXPERTS = (
    (r"gate_up_proj", _gate_and_up_columns_alternate),
    (r"gate_up_proj_bias", _gate_and_up_biases_alternate),
    (r"down_proj", _transposed),
    (r"down_proj_bias", _same),
)

_LAYER = (
    (r"input_layernorm\.weight", _named("mixer_norm.weight")),
    (r"post_attention_layernorm\.weight", _named("ffn_norm.weight")),
)

_MODEL = (
    (r"model\.embed_tokens\.weight", _named("embed_tokens.weight")),
    (r"model\.norm\.weight", _named("norm.weight")),
    (r"lm_head\.weight", _same),
)


def to_archc(
    state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], *, family: str, tied: Iterable[str] = ()
) -> Tensors:
    """archc's state_dict out of transformers'; ``shapes`` are those of the graph's weights, ``tied`` names are skipped.

    Raises:
        ValueError: a tensor has no place, a weight got none or two, or a shape differs. All of them are listed.
    """
    skipped = set(tied)
    found: Tensors = {}
    problems: list[str] = []
    for name, tensor in state.items():
        if name in skipped:
            continue
        placed = _place(name, tensor, family)
        if placed is None:
            problems.append(f"{name} {tuple(tensor.shape)} of transformers has no place")
            continue
        problems += [f"{other} is filled twice, last by {name}" for other in placed if other in found]
        found.update(placed)
    problems += [f"{name} is no weight of the graph" for name in found if name not in shapes]
    for name, shape in shapes.items():
        if name not in found:
            problems.append(f"{name} {shape} of the graph is not filled")
        elif tuple(found[name].shape) != tuple(shape):
            problems.append(f"{name} should be {shape} (found {tuple(found[name].shape)})")
    if problems:
        raise ValueError(f"{family}: {len(problems)} problems\n  " + "\n  ".join(problems))
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _place(name: str, tensor: Tensor, family: str) -> Tensors | None:
    """Where a tensor of transformers goes, under full names; None if nowhere."""
    experts = _GPT_OSS_EXPERTS if family == "gpt_oss" else _EXPERTS
    for prefix, scope, rules in (
        (r"()()", "", COMPRESSED_LAYERS.get(family, ())),
        (r"()()", "", DENSE_LAYERS.get(family, ())),
        (r"()()", "", FUSED_LAYERS.get(family, ())),
        (r"()()", "", MAMBA_LAYERS.get(family, ())),
        (r"()()", "", LIGHTNING_LAYERS.get(family, ())),
        (r"()()", "", JAMBA_LAYERS.get(family, ())),
        (r"()()", "", LAYERS.get(family, ())),
        (r"(model\.)(layers\.\d+\.)(self|linear)_attn\.", "mixer.", (*MIXERS.get(family, ()), *_MIXER)),
        (r"(model\.)(layers\.\d+\.)mlp\.experts\.", "ffn.experts.", experts),
        (r"(model\.)(layers\.\d+\.)mlp\.", "ffn.", _FFN),
        (r"(model\.)(layers\.\d+\.)", "", _LAYER),
        (r"()()", "", _MODEL),
    ):
        inside = re.match(prefix, name)
        if inside is None:
            continue
        rest = name[inside.end() :]
        for pattern, rule in rules:
            if re.fullmatch(pattern, rest):
                return {f"{inside[2]}{scope}{other}": part for other, part in rule(rest, tensor).items()}
    return None
