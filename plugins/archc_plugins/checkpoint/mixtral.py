"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import silu_only
from archc.checkpoint.config import Config
from archc.checkpoint.rules import Rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ATTENTION, ENDS, PRE_NORMS, QK_NORMS, Llama
from archc_plugins.checkpoint.mixtures import W1_W3_W2, experts, router, stacked_experts

COMMON: tuple[Rule, ...] = (*ENDS, *PRE_NORMS, *ATTENTION, *QK_NORMS)


class Mixtral(Llama):
    """MixtralForCausalLM."""

    model_class: ClassVar[str] = "MixtralForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 4096 * 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
    }

    def attention(self, config: Config) -> dict[str, Any]:
        window = config.take("sliding_window")
        return {} if window is None else {"sliding_window": window}

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        silu_only(config)
        moe = {
            "kind": "moe",
            "num_experts": config.take("num_local_experts", "num_experts"),
            "num_experts_per_tok": config.take("num_experts_per_tok"),
            "intermediate_size": config.take("intermediate_size"),
            "router": self.router(config),
        }
        return ["moe"] * layers, {"moe": moe}

    def router(self, config: Config) -> dict[str, Any]:
        """What chooses the experts."""
        return {"scoring_func": "softmax", "norm_topk_prob": True}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        there = "model.layers.{i}.block_sparse_moe"
        return (*COMMON, *router(f"{there}.gate"), *experts(f"{there}.experts", W1_W3_W2))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        there = "model.layers.{i}.mlp"
        return {"stacked experts": (*COMMON, *router(f"{there}.gate"), *stacked_experts(f"{there}.experts"))}
