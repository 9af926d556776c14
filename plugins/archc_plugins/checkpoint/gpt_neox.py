"""GPT-NeoX and Pythia: both branches in parallel, each from its norm; a head's query, key and value rows stand together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import DEFAULT_THETA, activation, rope, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.gpt2 import QUERY_KEY_VALUE


class GPTNeoX(Checkpoint):
    """GPTNeoXForCausalLM."""

    model_class: ClassVar[str] = "GPTNeoXForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "attention_bias": True,
        "rotary_emb_base": DEFAULT_THETA,
        "rotary_pct": 0.25,
    }
    dropped: ClassVar[Sequence[Dropped]] = (
        Dropped(r"gpt_neox\.layers\.\d+\.attention\.(masked_)?bias", "the causal mask, as a table"),
        Dropped(r"gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq", "frequencies follow from the configuration"),
    )

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, heads = config.take("hidden_size"), config.take("num_attention_heads")
        length, head_dim = config.take("max_position_embeddings"), hidden // heads
        biases = {"qkv_bias": True, "o_bias": True} if config.take("attention_bias") else {}
        parallel = config.take("use_parallel_residual")
        config.ignore("classifier_dropout", why="of classification heads")
        config.expect("is_decoder", False, True, why="is neither true nor false")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": hidden, "tie_word_embeddings": bool(config.take("tie_word_embeddings"))},
            "position": rope(
                config,
                head_dim=head_dim,
                length=length,
                theta_names=("rotary_emb_base", "rope_theta"),
                share_names=("rotary_pct", "partial_rotary_factor"),
            ),
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_eps")},
            "max_position_embeddings": length,
            "mixers": {
                "attn": {"kind": "gqa", "num_heads": heads, "num_kv_heads": heads, "head_dim": head_dim, **biases}
            },
            "ffns": {
                "mlp": {
                    "kind": "mlp",
                    "intermediate_size": config.take("intermediate_size"),
                    "activation": activation(config, "hidden_act"),
                    "bias": True,
                }
            },
            "stack": {
                "num_layers": config.take("num_hidden_layers"),
                "block": {"kind": "parallel", "shared_norm": False} if parallel else "pre_norm",
                "mixer": "attn",
                "ffn": "mlp",
            },
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        heads = int(config.get("num_attention_heads", self.defaults["num_attention_heads"]))
        return (
            rule("gpt_neox.embed_in.weight", "embed_tokens.weight"),
            *megatron_layer("gpt_neox.layers.{i}", "attention", groups=heads),
            *both("gpt_neox.final_layer_norm", "norm"),
            rule("embed_out.weight", "lm_head.weight"),
        )


def megatron_layer(
    layer: str,
    attention: str,
    *,
    groups: int | None,
    norms: tuple[str, str] = ("input_layernorm", "post_attention_layernorm"),
) -> tuple[Rule, ...]:
    """A layer under Megatron's names, which BLOOM and Falcon share.

    ``groups`` is the number of groups of heads whose query, key and value rows stand together; None for all queries, then
    all keys, then all values.
    """
    return (
        *both(f"{layer}.{norms[0]}", "layers.{i}.mixer_norm"),
        *both(f"{layer}.{attention}.query_key_value", *QUERY_KEY_VALUE, groups=groups),
        *both(f"{layer}.{attention}.dense", "layers.{i}.mixer.o_proj"),
        *both(f"{layer}.{norms[1]}", "layers.{i}.ffn_norm"),
        *both(f"{layer}.mlp.dense_h_to_4h", "layers.{i}.ffn.up_proj"),
        *both(f"{layer}.mlp.dense_4h_to_h", "layers.{i}.ffn.down_proj"),
    )
