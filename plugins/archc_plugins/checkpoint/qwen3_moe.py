"""Qwen3 with experts: Qwen3's attention, dense layers by list or by step, and a shared gate where its relatives have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import silu_only
from archc.checkpoint.config import Config
from archc.checkpoint.rules import Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import MLP, Qwen3
from archc_plugins.checkpoint.mixtral import COMMON
from archc_plugins.checkpoint.mixtures import (
    dense_then_moe,
    experts,
    placed,
    router,
    shared_expert,
    stacked_experts,
)

_MLP = "model.layers.{i}.mlp"
FEED_FORWARDS: tuple[Rule, ...] = (
    *MLP,
    *router(f"{_MLP}.gate"),
    *shared_expert(f"{_MLP}.shared_expert"),
    rule(f"{_MLP}.shared_expert_gate.weight", "layers.{i}.ffn.shared_experts.gate.weight"),
)
EXPERTS = experts(f"{_MLP}.experts")
STACKED = stacked_experts(f"{_MLP}.experts")


def routed(config: Config) -> dict[str, Any]:
    """Experts as Qwen states them."""
    return {
        "kind": "moe",
        "num_experts": config.take("num_experts", "num_local_experts"),
        "num_experts_per_tok": config.take("num_experts_per_tok"),
        "intermediate_size": config.take("moe_intermediate_size"),
    }


def dense_or_moe(
    config: Config, layers: int, dense: Mapping[str, Any], moe: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Layers of ``mlp_only_layers`` are dense, and those that ``decoder_sparse_step`` passes over."""
    only, step = config.take("mlp_only_layers") or (), config.take("decoder_sparse_step")
    names = dense_then_moe(layers, lambda layer: layer in only or (layer + 1) % step != 0)
    silu_only(config)
    if "dense" not in names:
        config.ignore("intermediate_size", why="of dense layers, and there are none")
    return names, placed(names, {"dense": dense, "moe": moe})


class Qwen3Moe(Qwen3):
    """Qwen3MoeForCausalLM."""

    model_class: ClassVar[str] = "Qwen3MoeForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
        "norm_topk_prob": False,
        "mlp_only_layers": None,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }

    def schedule(self, config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        window = config.take("sliding_window")
        if config.take("use_sliding_window") and window is not None:
            mixer = {**mixer, "sliding_window": window}
        config.ignore("max_window_layers", why="every layer slides or none does")
        return ["attn"] * layers, {"attn": mixer}

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        moe = routed(config)
        moe["router"] = {"scoring_func": "softmax", "norm_topk_prob": bool(config.take("norm_topk_prob"))}
        return dense_or_moe(config, layers, self.mlp(config), moe)

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*COMMON, *FEED_FORWARDS, *EXPERTS)

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {"stacked experts": (*COMMON, *FEED_FORWARDS, *STACKED)}
