"""MiniMax-01: lightning attention beside softmax attention, and a residual stream that is normed."""

from __future__ import annotations

from typing import Any

from tests.parity.family import FULL, GQA, LINEAR, NOT_RENORMALISED, ROPE, THETA, Family, config, spec

HEADS = 4
DERIVED = (r"model\.layers\.\d+\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)",)


def minimax(name: str, layer_types: list[str], mixers: str, **more: Any) -> Family:
    return Family(
        name=name,
        model_class="MiniMaxForCausalLM",
        config_class="MiniMaxConfig",
        # Blocks shorter than a prefill; a factor of its own for each kind of branch.
        config=config(
            **{**GQA, "intermediate_size": 24},
            num_hidden_layers=4,
            layer_types=layer_types,
            block_size=8,
            num_local_experts=8,
            num_experts_per_tok=2,
            full_attn_alpha_factor=1.3,
            full_attn_beta_factor=0.9,
            linear_attn_alpha_factor=1.2,
            linear_attn_beta_factor=0.8,
            mlp_alpha_factor=1.1,
            mlp_beta_factor=0.7,
            rope_parameters=ROPE,
        ),
        spec=spec(
            name,
            f"""
position: {{kind: rope, theta: 10000.0}}
mixers:
  attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24}}
  lightning:
    kind: lightning
    num_heads: {HEADS}
    head_dim: 24
    block:
      kind: normed_residual
      skip_multiplier: 1.2
      residual_multiplier: 0.8
      ffn_skip_multiplier: 1.1
      ffn_residual_multiplier: 0.7
ffns:
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    intermediate_size: 24
    router: {{scoring_func: softmax, norm_topk_prob: true}}
stack:
  num_layers: 4
  block:
    kind: normed_residual
    skip_multiplier: 1.3
    residual_multiplier: 0.9
    ffn_skip_multiplier: 1.1
    ffn_residual_multiplier: 0.7
  mixer: {mixers}
  ffn: moe
""",
        ),
        derived=DERIVED,
        **more,
    )


TWISTS = (
    ("eps: 0.01", "eps: 0.013"),
    THETA,
    NOT_RENORMALISED,
    ("skip_multiplier: 1.3", "skip_multiplier: 1.31"),
    ("residual_multiplier: 0.9", "residual_multiplier: 0.91"),
    ("skip_multiplier: 1.2", "skip_multiplier: 1.21"),
    ("residual_multiplier: 0.8", "residual_multiplier: 0.81"),
    ("ffn_residual_multiplier: 0.7\nffns", "ffn_residual_multiplier: 0.71\nffns"),
    ("ffn_residual_multiplier: 0.7\n  mixer", "ffn_residual_multiplier: 0.71\n  mixer"),
)

MINIMAX = minimax(
    "minimax",
    [FULL, LINEAR, LINEAR, FULL],
    "attn lightning*2 attn",
    twists=TWISTS,
)

MINIMAX_LINEAR_FIRST = minimax(
    "minimax_linear_first",
    [LINEAR, LINEAR, LINEAR, FULL],
    "lightning*3 attn",
    twists=TWISTS,
    # transformers reads the length of its cache from layer 0, which has no keys here.
    states_positions=True,
)


def _query_key_value_a_head(name: str, tensor: Any) -> dict[str, Any]:
    """Rows [q | k | v] for each head."""
    parts = tensor.unflatten(0, (HEADS, 3, -1)).unbind(1)
    return {_mixer(name, f"{n}_proj.weight"): part.flatten(0, 1) for n, part in zip("qkv", parts, strict=True)}


def _mixer(name: str, weight: str) -> str:
    return f"{name.removeprefix('model.').partition('.self_attn')[0]}.mixer.{weight}"


def _named(weight: str) -> Any:
    return lambda name, tensor: {_mixer(name, weight): tensor}


_LAYERS = (
    (r"model\.layers\.\d+\.self_attn\.qkv_proj\.weight", _query_key_value_a_head),
    (r"model\.layers\.\d+\.self_attn\.norm\.weight", _named("o_norm.weight")),
    (r"model\.layers\.\d+\.self_attn\.output_gate\.weight", _named("g_proj.weight")),
    (r"model\.layers\.\d+\.self_attn\.out_proj\.weight", _named("o_proj.weight")),
)
LAYERS = {"minimax": _LAYERS, "minimax_linear_first": _LAYERS}
"""Family -> rules for whole names, tried before those of all families."""
