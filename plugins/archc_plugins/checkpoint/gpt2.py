"""GPT-2: matrices stored inputs x outputs, queries, keys and values in one; published files leave out the first name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Rule, both, rule
from archc.graph.graph import Graph

QUERY_KEY_VALUE = tuple(f"layers.{{i}}.mixer.{name}_proj" for name in ("q", "k", "v"))
_SUMMARY = ("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout")


class GPT2(Checkpoint):
    """GPT2LMHeadModel."""

    model_class: ClassVar[str] = "GPT2LMHeadModel"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "tie_word_embeddings": True,
    }
    dropped: ClassVar[Sequence[Dropped]] = (
        Dropped(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias", "the causal mask, as a table"),
    )
    optional_prefix: ClassVar[str] = "transformer."

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, heads = config.take("n_embd", "hidden_size"), config.take("n_head", "num_attention_heads")
        mixer: dict[str, Any] = {
            "kind": "gqa",
            "num_heads": heads,
            "num_kv_heads": heads,
            "head_dim": hidden // heads,
            "qkv_bias": True,
            "o_bias": True,
        }
        if not config.take("scale_attn_weights"):
            mixer["softmax_scale"] = 1
        if config.take("scale_attn_by_inverse_layer_idx"):
            mixer["scale_attn_by_inverse_layer_idx"] = True
        config.expect("add_cross_attention", False, why="asks for attention to an encoder")
        config.ignore("reorder_and_upcast_attn", why="how it is rounded, not what is computed")
        config.ignore(*_SUMMARY, why="of classification heads")
        config.ignore("n_ctx", why="n_positions says it")
        config.ignore("output_past", "task_specific_params", why="of the interface")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": hidden, "tie_word_embeddings": bool(config.take("tie_word_embeddings"))},
            "position": "learned",
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_epsilon")},
            "max_position_embeddings": config.take("n_positions", "max_position_embeddings"),
            "mixers": {"attn": mixer},
            "ffns": {
                "mlp": {
                    "kind": "mlp",
                    "intermediate_size": config.take("n_inner", default=None) or 4 * hidden,
                    "activation": activation(config, "activation_function"),
                    "bias": True,
                }
            },
            "stack": {
                "num_layers": config.take("n_layer", "num_hidden_layers"),
                "block": "pre_norm",
                "mixer": "attn",
                "ffn": "mlp",
            },
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        layer = "transformer.h.{i}"
        return (
            rule("transformer.wte.weight", "embed_tokens.weight"),
            rule("transformer.wpe.weight", "embed_positions.weight"),
            *both(f"{layer}.ln_1", "layers.{i}.mixer_norm"),
            *both(f"{layer}.attn.c_attn", *QUERY_KEY_VALUE, transposed=True),
            *both(f"{layer}.attn.c_proj", "layers.{i}.mixer.o_proj", transposed=True),
            *both(f"{layer}.ln_2", "layers.{i}.ffn_norm"),
            *both(f"{layer}.mlp.c_fc", "layers.{i}.ffn.up_proj", transposed=True),
            *both(f"{layer}.mlp.c_proj", "layers.{i}.ffn.down_proj", transposed=True),
            *both("transformer.ln_f", "norm"),
            rule("lm_head.weight", "lm_head.weight"),
        )
