"""GLM-4.5: grouped-query attention with biases and partial rotation, the router and experts of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import silu_only
from archc.checkpoint.config import Config
from archc.checkpoint.rules import LeftOut, Rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import MLP, Llama
from archc_plugins.checkpoint.mixtral import COMMON
from archc_plugins.checkpoint.mixtures import (
    dense_then_moe,
    experts,
    grouped_router,
    layers_from,
    placed,
    router,
    says_one_kind_of_routing,
    shared_expert,
    stacked_experts,
)

_MLP = "model.layers.{i}.mlp"
_BUT_EXPERTS: tuple[Rule, ...] = (*COMMON, *MLP, *router(f"{_MLP}.gate"), *shared_expert(f"{_MLP}.shared_experts"))


class Glm4Moe(Llama):
    """Glm4MoeForCausalLM."""

    model_class: ClassVar[str] = "Glm4MoeForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "partial_rotary_factor": 0.5,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "use_qk_norm": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "num_nextn_predict_layers": 1,
    }

    def spec(self, config: Config) -> dict[str, Any]:
        body = super().spec(config)
        further = config.take("num_nextn_predict_layers", "num_mtp_layers") or 0
        if further:
            last = "moe" if "moe" in body["ffns"] else "dense"
            body["mtp"] = {"num_layers": further, "mixer": "attn", "ffn": last}
        return body

    def attention(self, config: Config) -> dict[str, Any]:
        found: dict[str, Any] = {"qkv_bias": True} if config.take("attention_bias") else {}
        return found | ({"qk_norm": "head"} if config.take("use_qk_norm") else {})

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        says_one_kind_of_routing(config)
        first = config.take("first_k_dense_replace") or 0
        names = dense_then_moe(layers, lambda layer: layer < first)
        dense = self.mlp(config)
        silu_only(config)
        moe = {
            "kind": "moe",
            "num_experts": config.take("n_routed_experts", "num_local_experts", "num_experts"),
            "num_experts_per_tok": config.take("num_experts_per_tok"),
            "num_shared_experts": config.take("n_shared_experts") or 0,
            "intermediate_size": config.take("moe_intermediate_size"),
            "router": grouped_router(config),
        }
        return names, placed(names, {"dense": dense, "moe": moe})

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        stated = {**self.defaults, **config}
        return layers_from(stated["num_hidden_layers"], stated.get("num_nextn_predict_layers") or 1)

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*_BUT_EXPERTS, *experts(f"{_MLP}.experts"))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {"stacked experts": (*_BUT_EXPERTS, *stacked_experts(f"{_MLP}.experts"))}
