"""BLOOM: ALiBi, a norm after the embedding, a head's query, key and value rows together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.gpt_neox import megatron_layer

# Of the code that trained it; the model class reads none of them.
_TRAINING = (
    "attention_softmax_in_fp32",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "offset_alibi",
    "skip_bias_add",
    "skip_bias_add_qkv",
    "n_inner",
)


class Bloom(Checkpoint):
    """BloomForCausalLM."""

    model_class: ClassVar[str] = "BloomForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 250880,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 8,
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "apply_residual_connection_post_layernorm": False,
        "tie_word_embeddings": True,
    }
    optional_prefix: ClassVar[str] = "transformer."

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, heads = config.take("n_embed", "hidden_size"), config.take("n_head", "num_attention_heads")
        length = config.take("seq_length", default=None)
        config.ignore(*_TRAINING, why="the model class never reads it")
        config.ignore("slow_but_exact", why="how it is rounded, not what is computed")
        config.ignore("unk_token_id", why="the tokenizer's own")
        normed = config.take("apply_residual_connection_post_layernorm")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": hidden,
                "tie_word_embeddings": bool(config.take("tie_word_embeddings")),
                "norm": True,
            },
            "position": "alibi",
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_epsilon")},
            **({} if length is None else {"max_position_embeddings": length}),
            "mixers": {
                "attn": {
                    "kind": "gqa",
                    "num_heads": heads,
                    "num_kv_heads": heads,
                    "head_dim": hidden // heads,
                    "qkv_bias": True,
                    "o_bias": True,
                }
            },
            "ffns": {"mlp": {"kind": "mlp", "intermediate_size": 4 * hidden, "activation": "gelu_tanh", "bias": True}},
            "stack": {
                "num_layers": config.take("n_layer", "num_hidden_layers"),
                "block": "normed_residual" if normed else "pre_norm",
                "mixer": "attn",
                "ffn": "mlp",
            },
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        heads = int(config.get("n_head", config.get("num_attention_heads", self.defaults["n_head"])))
        return (
            rule("transformer.word_embeddings.weight", "embed_tokens.weight"),
            *both("transformer.word_embeddings_layernorm", "embed_norm"),
            *megatron_layer("transformer.h.{i}", "self_attention", groups=heads),
            *both("transformer.ln_f", "norm"),
            rule("lm_head.weight", "lm_head.weight"),
        )
