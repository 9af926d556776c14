"""DeepSeek-V2 and V3, and Kimi K2, which is V3 in other sizes: latent attention, many small experts, some shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import rope, silu_only, stack, tokenizer, without_defaults
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, LeftOut, Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ENDS, MLP, PRE_NORMS, ROTARY_BUFFERS
from archc_plugins.checkpoint.mixtures import (
    dense_then_moe,
    expert_groups,
    experts,
    grouped_router,
    layers_from,
    placed,
    router,
    says_one_kind_of_routing,
    shared_expert,
    stacked_experts,
    trained_only,
)

_ATTENTION, _MLP = "model.layers.{i}.self_attn", "model.layers.{i}.mlp"
LATENT: tuple[Rule, ...] = (
    *(
        entry
        for name in ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
        for entry in both(f"{_ATTENTION}.{name}", f"layers.{{i}}.mixer.{name}")
    ),
    rule(f"{_ATTENTION}.q_a_layernorm.weight", "layers.{i}.mixer.q_a_layernorm.weight"),
    rule(f"{_ATTENTION}.kv_a_layernorm.weight", "layers.{i}.mixer.kv_a_layernorm.weight"),
    rule(f"{_ATTENTION}.kv_b_proj.weight", "layers.{i}.mixer.attention.kv_b_proj.weight"),
)
BUT_EXPERTS: tuple[Rule, ...] = (
    *ENDS,
    *PRE_NORMS,
    *LATENT,
    *MLP,
    *router(f"{_MLP}.gate"),
    *shared_expert(f"{_MLP}.shared_experts"),
)


def latent_attention(config: Config) -> dict[str, Any]:
    """The mixer of every family with latent attention."""
    heads, rank = config.take("num_attention_heads"), config.take("q_lora_rank")
    config.expect("num_key_value_heads", None, heads, why="is not num_attention_heads; latents expand to every head")
    config.ignore("head_dim", "qk_head_dim", why="qk_nope_head_dim and qk_rope_head_dim say it")
    found: dict[str, Any] = {"kind": "mla", "num_heads": heads}
    if rank is not None:
        found["q_lora_rank"] = rank
    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        found[name] = config.take(name)
    if config.take("attention_bias"):
        found["bias"] = True
    return found


class DeepseekV2(Checkpoint):
    """DeepseekV2ForCausalLM: softmax over all experts, groups judged by their best."""

    model_class: ClassVar[str] = "DeepseekV2ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "first_k_dense_replace": 0,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "n_group": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "routed_scaling_factor": 1.0,
        "topk_group": None,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "moe_intermediate_size": 1407,
    }
    dropped: ClassVar[Sequence[Dropped]] = (ROTARY_BUFFERS,)
    mixer: ClassVar[str] = "mla"
    """What the spec calls the mixer."""

    def spec(self, config: Config) -> dict[str, Any]:
        length, layers = config.take("max_position_embeddings"), config.take("num_hidden_layers")
        silu_only(config)
        names = self.schedule(config, layers)
        ffns = {
            "dense": {"kind": "swiglu", "intermediate_size": config.take("intermediate_size")},
            "moe": self.moe(config),
        }
        further = self.further_layers(config)
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": config.take("hidden_size"),
                "tie_word_embeddings": bool(config.take("tie_word_embeddings")),
            },
            "position": self.position(config, length),
            "norm": {"kind": "rms_norm", "eps": config.take("rms_norm_eps")},
            "max_position_embeddings": length,
            "mixers": {self.mixer: self.attention(config)},
            "ffns": placed(names, ffns),
            "stack": stack([self.mixer] * layers, names),
            **({"mtp": {"num_layers": further, "mixer": self.mixer, "ffn": names[-1]}} if further else {}),
        }

    def attention(self, config: Config) -> dict[str, Any]:
        """The mixer of every layer."""
        return latent_attention(config)

    def schedule(self, config: Config, layers: int) -> list[str]:
        """``dense`` or ``moe`` for every layer."""
        first = config.take("first_k_dense_replace") or 0
        return dense_then_moe(layers, lambda layer: layer < first)

    def position(self, config: Config, length: int) -> dict[str, Any]:
        """How the rotated part turns."""
        return rope(config, head_dim=0, length=length, interleaved=True)

    def moe(self, config: Config) -> dict[str, Any]:
        """The layers' experts."""
        return {
            "kind": "moe",
            "num_experts": config.take("n_routed_experts", "num_experts", "num_local_experts"),
            "num_experts_per_tok": config.take("num_experts_per_tok"),
            "num_shared_experts": config.take("n_shared_experts") or 0,
            "intermediate_size": config.take("moe_intermediate_size"),
            "router": self.router(config),
        }

    def router(self, config: Config) -> dict[str, Any]:
        """What chooses the experts."""
        config.expect("scoring_func", "softmax", why="is not the score of this family, softmax")
        config.expect("mlp_bias", False, why="asks for biases that this family has not")
        config.ignore("norm_topk_prob", why="this family never divides the chosen weights by their sum")
        trained_only(config)
        found: dict[str, Any] = {"scoring_func": "softmax", "norm_topk_prob": False}
        factor = float(config.take("routed_scaling_factor"))
        if factor != 1.0:
            found["routed_scaling_factor"] = factor
        method = config.take("topk_method")
        if method == "group_limited_greedy":
            groups = expert_groups(config)
            return found | groups | ({"group_score": "max"} if groups else {})
        if method != "greedy":
            config.refuse("topk_method", "is neither greedy nor group_limited_greedy")
        config.ignore("n_group", "topk_group", why="topk_method is greedy")
        return found

    def further_layers(self, config: Config) -> int:
        """Layers that predict further tokens."""
        return 0

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*BUT_EXPERTS, *experts(f"{_MLP}.experts"))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {"stacked experts": (*BUT_EXPERTS, *stacked_experts(f"{_MLP}.experts"))}


class DeepseekV3(DeepseekV2):
    """DeepseekV3ForCausalLM, and Kimi K2 under its own name: sigmoid, a bias for the choice, groups by their two best."""

    model_class: ClassVar[str] = "DeepseekV3ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "rope_interleave": True,
        "attention_bias": False,
        "num_nextn_predict_layers": 1,
    }

    def position(self, config: Config, length: int) -> dict[str, Any]:
        found = rope(config, head_dim=0, length=length, interleaved=bool(config.take("rope_interleave")))
        return without_defaults(found, interleaved=False)

    def router(self, config: Config) -> dict[str, Any]:
        says_one_kind_of_routing(config)
        return grouped_router(config)

    def further_layers(self, config: Config) -> int:
        return config.take("num_nextn_predict_layers", "num_mtp_layers") or 0

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        stated = {**self.defaults, **config}
        return layers_from(stated["num_hidden_layers"], stated.get("num_nextn_predict_layers") or 1)
