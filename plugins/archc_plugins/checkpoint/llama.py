"""Llama and the families that differ from it by a few keys: Mistral, Qwen2, Qwen3, SmolLM, TinyLlama, Granite (dense)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, rope, stack, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Rule, both, rule
from archc.graph.graph import Graph

ATTENTION: tuple[Rule, ...] = tuple(
    entry
    for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    for entry in both(f"model.layers.{{i}}.self_attn.{name}", f"layers.{{i}}.mixer.{name}")
)
QK_NORMS: tuple[Rule, ...] = tuple(
    rule(f"model.layers.{{i}}.self_attn.{name}.weight", f"layers.{{i}}.mixer.{name}.weight")
    for name in ("q_norm", "k_norm")
)
MLP: tuple[Rule, ...] = tuple(
    entry
    for name in ("gate_proj", "up_proj", "down_proj")
    for entry in both(f"model.layers.{{i}}.mlp.{name}", f"layers.{{i}}.ffn.{name}")
)
PRE_NORMS: tuple[Rule, ...] = (
    rule("model.layers.{i}.input_layernorm.weight", "layers.{i}.mixer_norm.weight"),
    rule("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.ffn_norm.weight"),
)
ENDS: tuple[Rule, ...] = (
    rule("model.embed_tokens.weight", "embed_tokens.weight"),
    rule("model.norm.weight", "norm.weight"),
    rule("lm_head.weight", "lm_head.weight"),
)
ROTARY_BUFFERS = Dropped(
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "frequencies follow from the configuration"
)


class Llama(Checkpoint):
    """LlamaForCausalLM, and the base of its relatives."""

    model_class: ClassVar[str] = "LlamaForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    dropped: ClassVar[Sequence[Dropped]] = (ROTARY_BUFFERS,)

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, heads = config.take("hidden_size"), config.take("num_attention_heads")
        head_dim = config.take("head_dim", default=None) or hidden // heads
        length = config.take("max_position_embeddings")
        tied = bool(config.take("tie_word_embeddings"))
        config.expect(
            "rope_interleaved", False, why="asks for pairs of neighbours, which transformers does not turn here"
        )
        layers = config.take("num_hidden_layers")
        mixer = {
            "kind": "gqa",
            "num_heads": heads,
            "num_kv_heads": config.take("num_key_value_heads", default=None) or heads,
            "head_dim": head_dim,
            **self.attention(config),
        }
        names, mixers = self.schedule(config, layers, mixer)
        ffn_names, ffns = self.feed_forwards(config, layers)
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": hidden, "tie_word_embeddings": tied, **self.embedding(config)},
            "position": self.position(config, head_dim=head_dim, length=length),
            "norm": {"kind": "rms_norm", "eps": config.take("rms_norm_eps")},
            "max_position_embeddings": length,
            "mixers": mixers,
            "ffns": ffns,
            "stack": stack(names, ffn_names, block=self.block(config)),
            **self.head(config),
        }

    def attention(self, config: Config) -> dict[str, Any]:
        """Keys of the attention beside its heads."""
        return {"qkv_bias": True, "o_bias": True} if config.take("attention_bias") else {}

    def position(self, config: Config, *, head_dim: int, length: int) -> Any:
        """How attention sees order."""
        return rope(config, head_dim=head_dim, length=length)

    def schedule(self, config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        """(a mixer a layer, the mixers by name)."""
        return ["attn"] * layers, {"attn": mixer}

    def feed_forwards(self, config: Config, layers: int) -> tuple[list[str], dict[str, Any]]:
        """(a feed-forward a layer, the feed-forwards by name)."""
        return ["mlp"] * layers, {"mlp": self.mlp(config)}

    def mlp(self, config: Config) -> dict[str, Any]:
        """The dense feed-forward."""
        found: dict[str, Any] = {"kind": "swiglu", "intermediate_size": config.take("intermediate_size")}
        function = activation(config, "hidden_act")
        if function != "silu":
            found["activation"] = function
        if "mlp_bias" in self.defaults and config.take("mlp_bias"):
            found["bias"] = True
        return found

    def block(self, config: Config) -> Any:
        """The residual layout."""
        return "pre_norm"

    def embedding(self, config: Config) -> dict[str, Any]:
        """Further keys of the embedding."""
        return {}

    def head(self, config: Config) -> dict[str, Any]:
        """The head's section, where it says something."""
        return {}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*ENDS, *PRE_NORMS, *ATTENTION, *QK_NORMS, *MLP)


def windows(config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Layers that slide, by ``layer_types`` or by ``max_window_layers``, where ``use_sliding_window`` asks for it."""
    sliding = bool(config.take("use_sliding_window", default=False))
    window, first = config.take("sliding_window", default=None), config.take("max_window_layers", default=layers)
    types = config.take("layer_types", default=None)
    if not sliding or window is None:
        return ["attn"] * layers, {"attn": mixer}
    kinds = types or ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    names = ["sliding" if kind == "sliding_attention" else "full" for kind in kinds]
    mixers: dict[str, Any] = {}
    if "full" in names:
        mixers["full"] = mixer
    if "sliding" in names:
        mixers["sliding"] = (
            {"extends": "full", "sliding_window": window} if mixers else {**mixer, "sliding_window": window}
        )
    return names, mixers


class Mistral(Llama):
    """Every layer slides where a window is stated."""

    model_class: ClassVar[str] = "MistralForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 4096 * 32,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "sliding_window": 4096,
    }

    def attention(self, config: Config) -> dict[str, Any]:
        window = config.take("sliding_window")
        return {} if window is None else {"sliding_window": window}


class Qwen2(Llama):
    """Biases on queries, keys and values, none on the output."""

    model_class: ClassVar[str] = "Qwen2ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }

    def attention(self, config: Config) -> dict[str, Any]:
        return {"qkv_bias": True}

    def schedule(self, config: Config, layers: int, mixer: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        return windows(config, layers, mixer)


class Qwen3(Qwen2):
    """A norm on each head of queries and keys; biases everywhere or nowhere."""

    model_class: ClassVar[str] = "Qwen3ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {**Qwen2.defaults, "head_dim": 128, "attention_bias": False}

    def attention(self, config: Config) -> dict[str, Any]:
        biases = {"qkv_bias": True, "o_bias": True} if config.take("attention_bias") else {}
        return {**biases, "qk_norm": "head"}
