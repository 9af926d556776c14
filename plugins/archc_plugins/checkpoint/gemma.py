"""Gemma 2 and Gemma 3 (text): norms of 1 + w before and after each branch, scaled embeddings, windows in most layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import DEFAULT_THETA, activation, rope, stack, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint, Nested
from archc.checkpoint.rules import Dropped, LeftOut, Naming, Rule, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.cohere2 import FULL, SLIDING, layer_types
from archc_plugins.checkpoint.granite import plain
from archc_plugins.checkpoint.llama import ATTENTION, ENDS, MLP, PRE_NORMS, QK_NORMS, ROTARY_BUFFERS
from archc_plugins.checkpoint.olmo2 import OUTPUT_NORMS

SANDWICH: tuple[Rule, ...] = (
    PRE_NORMS[0],
    *OUTPUT_NORMS,
    rule("model.layers.{i}.pre_feedforward_layernorm.weight", "layers.{i}.ffn_norm.weight"),
)


class Gemma2(Checkpoint):
    """Gemma2ForCausalLM: every other layer slides, the first one does; scores and logits are capped softly."""

    model_class: ClassVar[str] = "Gemma2ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    }
    dropped: ClassVar[Sequence[Dropped]] = (ROTARY_BUFFERS,)

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, layers = config.take("hidden_size"), config.take("num_hidden_layers")
        length, head_dim = config.take("max_position_embeddings"), config.take("head_dim")
        types, window = layer_types(config, layers), config.take("sliding_window")
        full, sliding = self.positions(config, head_dim, length)
        mixer = {
            "kind": "gqa",
            "num_heads": config.take("num_attention_heads"),
            "num_kv_heads": config.take("num_key_value_heads"),
            "head_dim": head_dim,
            **self.attention(config),
        }
        mixers: dict[str, Any] = {}
        if FULL in types:
            mixers["global"] = mixer
        if SLIDING in types:
            local = {"extends": "global"} if mixers else mixer
            mixers["local"] = local | ({} if window is None else {"sliding_window": window})
            if sliding is not None:
                mixers["local"]["position"] = sliding
        config.ignore("hidden_act", why="hidden_activation says it")
        config.ignore("cache_implementation", why="how transformers computes, not what")
        config.expect("use_bidirectional_attention", None, False, why="asks for attention to later tokens")
        cap = config.take("final_logit_softcapping")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": hidden,
                "tie_word_embeddings": bool(config.take("tie_word_embeddings")),
                "scale": "sqrt(hidden_size)",
            },
            "position": full,
            "norm": {"kind": "rms_norm", "eps": config.take("rms_norm_eps"), "weight_offset": 1.0},
            "max_position_embeddings": length,
            "mixers": mixers,
            "ffns": {"mlp": _mlp(config)},
            "stack": stack(["local" if kind == SLIDING else "global" for kind in types], "mlp", block="sandwich"),
            **({} if cap is None else {"head": {"kind": "lm", "final_logit_softcapping": cap}}),
        }

    def positions(self, config: Config, head_dim: int, length: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """(of all layers, of those that slide where it is another)."""
        return rope(config, head_dim=head_dim, length=length), None

    def attention(self, config: Config) -> dict[str, Any]:
        """Keys of the attention beside its heads."""
        biases = {"qkv_bias": True, "o_bias": True} if config.take("attention_bias") else {}
        cap = config.take("attn_logit_softcapping")
        caps = {} if cap is None else {"attn_logit_softcapping": cap}
        return {**biases, "softmax_scale": _softmax_scale(config), **caps}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*ENDS, *SANDWICH, *ATTENTION, *QK_NORMS, *MLP)


class Gemma3Text(Gemma2):
    """Gemma3ForCausalLM: five layers that slide to one that doesn't, a rope for each kind, norms on queries and keys."""

    model_class: ClassVar[str] = "Gemma3ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Gemma2.defaults,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": DEFAULT_THETA,
        "sliding_window_pattern": 6,
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
    }

    def positions(self, config: Config, head_dim: int, length: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        full = rope(config, head_dim=head_dim, length=length, of=FULL)
        if isinstance(config.data.get("rope_parameters"), Mapping):
            local = ("rope_local_base_freq",)
            return full, rope(config, head_dim=head_dim, length=length, of=SLIDING, theta_names=local)
        return full, {"kind": "rope", "theta": float(config.take("rope_local_base_freq"))}

    def attention(self, config: Config) -> dict[str, Any]:
        biases = {"qkv_bias": True, "o_bias": True} if config.take("attention_bias") else {}
        config.ignore("attn_logit_softcapping", why="the model class never reads it")
        return {**biases, "qk_norm": "head", "softmax_scale": _softmax_scale(config)}


# How files of several towers write the names of the text model: published ones, and transformers as it runs them.
TOWERED: tuple[Naming, ...] = (
    (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")),
    (("model.", "model.language_model."),),
)
VISION: tuple[LeftOut, ...] = (
    LeftOut("vision_tower.*", "the vision tower"),
    LeftOut("model.vision_tower.*", "the vision tower"),
    LeftOut("multi_modal_projector.*", "what brings images to the text model"),
    LeftOut("model.multi_modal_projector.*", "what brings images to the text model"),
)


class Gemma3(Nested):
    """The text side of Gemma3ForConditionalGeneration."""

    model_class: ClassVar[str] = "Gemma3ForConditionalGeneration"
    text: ClassVar[type[Checkpoint]] = Gemma3Text
    defaults: ClassVar[Mapping[str, Any]] = {"tie_word_embeddings": True}
    other_namings: ClassVar[Sequence[Naming]] = TOWERED
    towers: ClassVar[Sequence[LeftOut]] = VISION
    outer_no_effect: ClassVar[Mapping[str, str]] = {
        "vision_config": "of the vision tower, which is left out",
        **dict.fromkeys(
            (
                "mm_tokens_per_image",
                "boi_token_index",
                "eoi_token_index",
                "image_token_index",
                "boi_token_id",
                "eoi_token_id",
                "image_token_id",
            ),
            "of images among the text",
        ),
    }


def _softmax_scale(config: Config) -> str:
    return f"1/sqrt({plain(config.take('query_pre_attn_scalar'))})"


def _mlp(config: Config) -> dict[str, Any]:
    function, width = activation(config, "hidden_activation"), config.take("intermediate_size")
    kind = "geglu" if function in ("gelu", "gelu_tanh") else "swiglu"
    return {"kind": kind, "intermediate_size": width, "activation": function}
