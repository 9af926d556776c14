"""Jamba: Mamba-1 with norms inside, attention without positions in one layer of a period, experts in one of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import by_layer
from archc.checkpoint.config import Config
from archc.checkpoint.rules import Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ATTENTION, Llama
from archc_plugins.checkpoint.mamba2 import without_switches
from archc_plugins.checkpoint.mixtures import GATE_UP_DOWN, dense_then_moe, experts, placed, router, stacked_experts

_LAYER, _MIXER, _FFN = "model.layers.{i}", "layers.{i}.mixer", "model.layers.{i}.feed_forward"
_COMMON: tuple[Rule, ...] = (
    rule("model.embed_tokens.weight", "embed_tokens.weight"),
    rule("model.final_layernorm.weight", "norm.weight"),
    rule("lm_head.weight", "lm_head.weight"),
    rule(f"{_LAYER}.input_layernorm.weight", "layers.{i}.mixer_norm.weight"),
    rule(f"{_LAYER}.pre_ff_layernorm.weight", "layers.{i}.ffn_norm.weight"),
    *ATTENTION,
    *both(f"{_LAYER}.mamba.in_proj", f"{_MIXER}.x_proj", f"{_MIXER}.gate_proj"),
    *both(f"{_LAYER}.mamba.conv1d", f"{_MIXER}.conv.x_conv1d"),
    rule(f"{_LAYER}.mamba.x_proj.weight", *(f"{_MIXER}.{name}_proj.weight" for name in ("dt_a", "b", "c"))),
    *(rule(f"{_LAYER}.mamba.{n}_layernorm.weight", f"{_MIXER}.{n}_norm.weight") for n in ("dt", "b", "c")),
    rule(f"{_LAYER}.mamba.dt_proj.weight", f"{_MIXER}.dt_b_proj.weight"),
    rule(f"{_LAYER}.mamba.dt_proj.bias", f"{_MIXER}.selective_scan.dt_bias"),
    *(rule(f"{_LAYER}.mamba.{name}", f"{_MIXER}.selective_scan.{name}") for name in ("A_log", "D")),
    *both(f"{_LAYER}.mamba.out_proj", f"{_MIXER}.out_proj"),
    *router(f"{_FFN}.router"),
    *(rule(f"{_FFN}.{name}.weight", f"layers.{{i}}.ffn.{name}.weight") for name in GATE_UP_DOWN),
)


class Jamba(Llama):
    """JambaForCausalLM."""

    model_class: ClassVar[str] = "JambaForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 65536,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "num_experts_per_tok": 2,
        "num_experts": 16,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    }

    def spec(self, config: Config) -> dict[str, Any]:
        config.expect("hidden_act", "silu", why="is not the activation that archc has here, silu")
        config.expect("sliding_window", None, why="asks for windows that this family has not")
        config.expect("mamba_inner_layernorms", True, why="asks for a mixer without its norms; this family has them")
        config.ignore(
            "use_mamba_kernels",
            "use_mambapy",
            "use_associative_scan",
            "calc_logits_for_entire_prompt",
            "num_logits_to_keep",
            why="how it is computed, not what",
        )
        return super().spec(config)

    def position(self, config: Config, *, head_dim: int, length: int) -> Any:
        """None: order comes from the scans."""
        return "none"

    def attention(self, config: Config) -> dict[str, Any]:
        return {}

    def schedule(self, config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        period, offset = config.take("attn_layer_period"), config.take("attn_layer_offset")
        names = by_layer(layers, lambda layer: "attn" if layer % period == offset else "mamba")
        hidden, rank = config.take("hidden_size"), config.take("mamba_dt_rank")
        mamba = {
            "kind": "mamba1",
            "intermediate_size": config.take("mamba_expand") * hidden,
            "state_size": config.take("mamba_d_state"),
            "dt_rank": math.ceil(hidden / 16) if rank == "auto" else rank,
            "conv_kernel": config.take("mamba_d_conv"),
            "inner_norm": True,
            "bias": bool(config.take("mamba_proj_bias")),
            "conv_bias": bool(config.take("mamba_conv_bias")),
        }
        mixers = {"mamba": without_switches(mamba), "attn": mixer}
        return names, {name: entry for name, entry in mixers.items() if name in names}

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        width, count = config.take("intermediate_size"), config.take("num_experts")
        period, offset = config.take("expert_layer_period"), config.take("expert_layer_offset")
        names = dense_then_moe(layers, lambda layer: count < 2 or layer % period != offset)
        moe = {
            "kind": "moe",
            "num_experts": count,
            "num_experts_per_tok": config.take("num_experts_per_tok"),
            "intermediate_size": width,
            "router": {"scoring_func": "softmax", "norm_topk_prob": False},
        }
        return names, placed(names, {"dense": {"kind": "swiglu", "intermediate_size": width}, "moe": moe})

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*_COMMON, *experts(f"{_FFN}.experts"))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {"stacked experts": (*_COMMON, *stacked_experts(f"{_FFN}.experts"))}
