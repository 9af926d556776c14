"""Jamba: Mamba-1 with norms inside, beside attention without positions and experts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tests.parity.family import EPS, Family, config, spec

Tensors = dict[str, Tensor]

RANK, STATE = 6, 8

JAMBA = Family(
    name="jamba",
    model_class="JambaForCausalLM",
    config_class="JambaConfig",
    config=config(
        num_hidden_layers=4,
        intermediate_size=40,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        attn_layer_period=4,
        attn_layer_offset=2,
        mamba_d_state=STATE,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank=RANK,
        mamba_conv_bias=True,
        mamba_proj_bias=True,
    ),
    final_norm="model.final_layernorm.weight",
    tolerance=1e-4,
    spec=spec(
        "jamba",
        f"""
position: none
mixers:
  mamba: {{kind: mamba1, intermediate_size: 128, state_size: {STATE}, dt_rank: {RANK}, inner_norm: true, bias: true}}
  attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16}}
ffns:
  dense: {{kind: swiglu, intermediate_size: 40}}
  moe:
    kind: moe
    num_experts: 4
    num_experts_per_tok: 2
    intermediate_size: 40
    router: {{scoring_func: softmax, norm_topk_prob: false}}
stack: {{num_layers: 4, block: pre_norm, mixer: mamba*2 attn mamba, ffn: (dense moe)*}}
""",
    ),
    twists=(
        EPS,
        ("norm_topk_prob: false", "norm_topk_prob: true"),
        ("position: none", "position: {kind: rope, theta: 10000.0}"),
    ),
)

_PARTS = {
    "in_proj": (("x_proj", 128), ("gate_proj", 128)),
    "x_proj": (("dt_a_proj", RANK), ("b_proj", STATE), ("c_proj", STATE)),
}
_NAMES = {
    "A_log": "mixer.selective_scan.A_log",
    "D": "mixer.selective_scan.D",
    "dt_proj.bias": "mixer.selective_scan.dt_bias",
    "dt_proj.weight": "mixer.dt_b_proj.weight",
    "conv1d.weight": "mixer.conv.x_conv1d.weight",
    "conv1d.bias": "mixer.conv.x_conv1d.bias",
    "out_proj.weight": "mixer.out_proj.weight",
    "out_proj.bias": "mixer.out_proj.bias",
    **{f"{n}_layernorm.weight": f"mixer.{n}_norm.weight" for n in ("dt", "b", "c")},
}


def _mamba(name: str, tensor: Tensor) -> Tensors:
    layer, _, rest = name.removeprefix("model.").partition(".mamba.")
    module, _, leaf = rest.rpartition(".")
    if module in _PARTS:
        sizes = [size for _, size in _PARTS[module]]
        named = zip(_PARTS[module], tensor.split(sizes), strict=True)
        return {f"{layer}.mixer.{part}.{leaf}": rows for (part, _), rows in named}
    return {f"{layer}.{_NAMES[rest]}": tensor}


def _experts(name: str, tensor: Tensor) -> Tensors:
    layer, _, rest = name.removeprefix("model.").partition(".feed_forward.experts.")
    if rest == "down_proj":
        return {f"{layer}.ffn.experts.down_proj": tensor}
    gate, up = tensor.chunk(2, dim=1)
    return {f"{layer}.ffn.experts.gate_proj": gate, f"{layer}.ffn.experts.up_proj": up}


def _moved(before: str, after: str) -> Callable[[str, Tensor], Tensors]:
    return lambda name, tensor: {name.removeprefix("model.").replace(before, after): tensor}


LAYERS = {
    "jamba": (
        (r"model\.layers\.\d+\.mamba\..*", _mamba),
        (r"model\.layers\.\d+\.feed_forward\.experts\..*", _experts),
        (r"model\.layers\.\d+\.feed_forward\.(gate|up|down)_proj\.weight", _moved("feed_forward", "ffn")),
        (r"model\.layers\.\d+\.feed_forward\.router\.weight", _moved("feed_forward", "ffn")),
        (r"model\.layers\.\d+\.pre_ff_layernorm\.weight", _moved("pre_ff_layernorm", "ffn_norm")),
        (r"model\.final_layernorm\.weight", _moved("final_layernorm", "norm")),
    ),
}
"""Family -> rules for whole names, tried before those of all families."""
