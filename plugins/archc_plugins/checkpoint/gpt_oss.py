"""gpt-oss: windows on every other layer, sink logits, clamped experts with biases. Published in MXFP4; read dequantised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import stated_types
from archc.checkpoint.config import Config
from archc.checkpoint.rules import ALTERNATE, Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import Llama
from archc_plugins.checkpoint.mixtral import COMMON

_EXPERTS, _OURS = "model.layers.{i}.mlp.experts", "layers.{i}.ffn.experts"
RULES: tuple[Rule, ...] = (
    *COMMON,
    rule("model.layers.{i}.self_attn.sinks", "layers.{i}.mixer.attention.sinks"),
    *both("model.layers.{i}.mlp.router", "layers.{i}.ffn.router"),
    # Inputs x outputs; even columns are the gate's, odd ones up's.
    rule(
        f"{_EXPERTS}.gate_up_proj",
        f"{_OURS}.gate_proj",
        f"{_OURS}.up_proj",
        axis=1,
        groups=ALTERNATE,
        transposed=True,
    ),
    rule(
        f"{_EXPERTS}.gate_up_proj_bias",
        f"{_OURS}.gate_proj_bias",
        f"{_OURS}.up_proj_bias",
        axis=1,
        groups=ALTERNATE,
    ),
    rule(f"{_EXPERTS}.down_proj", f"{_OURS}.down_proj", axis=1, transposed=True),
    rule(f"{_EXPERTS}.down_proj_bias", f"{_OURS}.down_proj_bias"),
)


class GptOss(Llama):
    """GptOssForCausalLM."""

    model_class: ClassVar[str] = "GptOssForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": None,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }

    def attention(self, config: Config) -> dict[str, Any]:
        biases = {"qkv_bias": True, "o_bias": True} if config.take("attention_bias") else {}
        return {**biases, "sink_logits": True}

    def schedule(self, config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        window = config.take("sliding_window")
        types = stated_types(config, layers, "full_attention", "sliding_attention") or [
            "full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)
        ]
        names = ["sliding" if kind == "sliding_attention" else "full" for kind in types]
        if "full" not in names:
            return names, {"sliding": {**mixer, "sliding_window": window}}
        mixers: dict[str, Any] = {"full": mixer, "sliding": {"extends": "full", "sliding_window": window}}
        return names, {name: entry for name, entry in mixers.items() if name in names}

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        config.ignore("hidden_act", why="its experts have an activation of their own")
        config.ignore("experts_per_token", why="num_experts_per_tok says it")
        config.ignore("initial_context_length", why="the rope scaling says it")
        expert = {
            "kind": "clamped_swiglu",
            "limit": float(config.take("swiglu_limit")),
            "alpha": float(config.take("swiglu_alpha")),
            "up_offset": 1.0,
            "bias": True,
        }
        moe = {
            "kind": "moe",
            "num_experts": config.take("num_local_experts", "num_experts"),
            "num_experts_per_tok": config.take("num_experts_per_tok", "experts_per_token"),
            "intermediate_size": config.take("intermediate_size"),
            "expert": expert,
            "router": {"scoring_func": "softmax", "norm_topk_prob": True, "bias": True},
        }
        return ["moe"] * layers, {"moe": moe}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return RULES
