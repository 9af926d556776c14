"""Phi-3: one matrix of queries, keys and values, one of gate and up, a window, and two lists of rope divisors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.config import Config
from archc.checkpoint.rules import Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ENDS, PRE_NORMS, Llama

_LENGTH = "original_max_position_embeddings"
JOINED: tuple[Rule, ...] = (
    rule(
        "model.layers.{i}.self_attn.qkv_proj.weight",
        *(f"layers.{{i}}.mixer.{name}_proj.weight" for name in ("q", "k", "v")),
    ),
    *both("model.layers.{i}.self_attn.o_proj", "layers.{i}.mixer.o_proj"),
    rule(
        "model.layers.{i}.mlp.gate_up_proj.weight",
        *(f"layers.{{i}}.ffn.{name}_proj.weight" for name in ("gate", "up")),
    ),
    *both("model.layers.{i}.mlp.down_proj", "layers.{i}.ffn.down_proj"),
)


class Phi3(Llama):
    """Phi3ForCausalLM."""

    model_class: ClassVar[str] = "Phi3ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        _LENGTH: 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 32000,
        "pad_token_id": 32000,
        "tie_word_embeddings": False,
    }

    def spec(self, config: Config) -> dict[str, Any]:
        found = super().spec(config)
        if found["position"].get("scaling", {}).get("kind") != "longrope":
            config.ignore(_LENGTH, why="there is no rope scaling that reads it")
        return found

    def attention(self, config: Config) -> dict[str, Any]:
        config.expect("attention_bias", False, why="asks for biases, which the model class has none of")
        window = config.take("sliding_window", default=None)
        return {} if window is None else {"sliding_window": window}

    def schedule(self, config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        name = "local" if "sliding_window" in mixer else "attn"
        return [name] * layers, {name: mixer}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*ENDS, *PRE_NORMS, *JOINED)
