"""Qwen3.5, the text side: Qwen3-Next with the inputs of its delta rule apart, dense or with experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import silu_only
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint, Nested
from archc.checkpoint.rules import LeftOut, Naming, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.gemma import TOWERED
from archc_plugins.checkpoint.mixtures import FURTHER_TOKENS
from archc_plugins.checkpoint.qwen3_next import Qwen3Next, shared_and_routed

_DELTA, _OURS = "model.layers.{i}.linear_attn", "layers.{i}.mixer"
_ATTENTION: Mapping[str, Any] = {
    "vocab_size": 248320,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "partial_rotary_factor": 0.25,
    "num_attention_heads": 16,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "layer_types": None,
    "full_attention_interval": 4,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


class Qwen35Text(Qwen3Next):
    """Qwen3_5ForCausalLM."""

    model_class: ClassVar[str] = "Qwen3_5ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        **_ATTENTION,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    }
    rope_no_effect: ClassVar[Mapping[str, str]] = {
        "mrope_section": "of pictures; the three positions of a text token are one",
        "mrope_interleaved": "of pictures; the three positions of a text token are one",
    }
    other_namings: ClassVar[Sequence[Naming]] = TOWERED

    def spec(self, config: Config) -> dict[str, Any]:
        config.expect("mlp_only_layers", [], None, why="asks for dense layers among others; all are of one kind")
        return super().spec(config)

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        silu_only(config)
        return ["mlp"] * layers, {"mlp": {"kind": "swiglu", "intermediate_size": config.take("intermediate_size")}}

    def further_layers(self, config: Config) -> int:
        config.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", why=FURTHER_TOKENS)
        return 0

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {}

    def inputs(self, heads: int) -> tuple[Rule, ...]:
        return (
            rule(f"{_DELTA}.in_proj_qkv.weight", *(f"{_OURS}.{n}_proj.weight" for n in "qkv")),
            rule(f"{_DELTA}.in_proj_z.weight", f"{_OURS}.g_proj.weight"),
            rule(f"{_DELTA}.in_proj_b.weight", f"{_OURS}.b_proj.weight"),
            rule(f"{_DELTA}.in_proj_a.weight", f"{_OURS}.a_proj.weight"),
        )


class Qwen35MoeText(Qwen35Text):
    """Qwen3_5MoeForCausalLM."""

    model_class: ClassVar[str] = "Qwen3_5MoeForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        **_ATTENTION,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8,
        "num_experts": 256,
    }

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        silu_only(config)
        config.ignore("intermediate_size", why="of dense layers, and there are none")
        config.expect("norm_topk_prob", True, why="asks for weights that are not divided by their sum")
        moe = shared_and_routed(config)
        return ["moe"] * layers, {"moe": {**moe, "router": {"scoring_func": "softmax", "norm_topk_prob": True}}}

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return super(Qwen35Text, self).other_layouts(graph, config)


class Qwen35(Nested):
    """The text side of Qwen3_5ForConditionalGeneration."""

    model_class: ClassVar[str] = "Qwen3_5ForConditionalGeneration"
    text: ClassVar[type[Checkpoint]] = Qwen35Text
    defaults: ClassVar[Mapping[str, Any]] = {"tie_word_embeddings": False}
    other_namings: ClassVar[Sequence[Naming]] = TOWERED
    towers: ClassVar[Sequence[LeftOut]] = (LeftOut("model.visual.*", "the vision tower"),)
    outer_no_effect: ClassVar[Mapping[str, str]] = {
        "vision_config": "of the vision tower, which is left out",
        **dict.fromkeys(
            ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
            "of pictures among the text",
        ),
    }


class Qwen35Moe(Qwen35):
    """The text side of Qwen3_5MoeForConditionalGeneration."""

    model_class: ClassVar[str] = "Qwen3_5MoeForConditionalGeneration"
    text: ClassVar[type[Checkpoint]] = Qwen35MoeText
