"""OLMo 2: norms on what the branches give, none on what they read, and a norm over all queries and all keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.config import Config
from archc.checkpoint.rules import Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.llama import ATTENTION, ENDS, MLP, QK_NORMS, Llama

OUTPUT_NORMS: tuple[Rule, ...] = (
    rule("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.mixer_output_norm.weight"),
    rule("model.layers.{i}.post_feedforward_layernorm.weight", "layers.{i}.ffn_output_norm.weight"),
)


class Olmo2(Llama):
    """Olmo2ForCausalLM."""

    model_class: ClassVar[str] = "Olmo2ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50304,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 1,
        "eos_token_id": 50279,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }

    def attention(self, config: Config) -> dict[str, Any]:
        return {"qk_norm": "width", **super().attention(config)}

    def block(self, config: Config) -> Any:
        return "output_norm"

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*ENDS, *OUTPUT_NORMS, *ATTENTION, *QK_NORMS, *MLP)
