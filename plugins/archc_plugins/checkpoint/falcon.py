"""Falcon: the 7B's form with one key and value head, the later one with groups of heads and two norms, and the ALiBi one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, rope, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.gpt_neox import megatron_layer


class Falcon(Checkpoint):
    """FalconForCausalLM."""

    model_class: ClassVar[str] = "FalconForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "num_ln_in_parallel_attn": None,
        "layer_norm_epsilon": 1e-5,
        "num_kv_heads": None,
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "max_position_embeddings": 2048,
        "bos_token_id": 11,
        "eos_token_id": 11,
        "ffn_hidden_size": None,
        "activation": "gelu",
        "tie_word_embeddings": True,
    }
    optional_prefix: ClassVar[str] = "transformer."

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, heads = config.take("n_embed", "hidden_size"), config.take("num_attention_heads")
        length, head_dim = config.take("max_position_embeddings"), hidden // heads
        biases = bool(config.take("bias"))
        mixer = {"kind": "gqa", "num_heads": heads, "num_kv_heads": _kv_heads(config, heads), "head_dim": head_dim}
        mlp = {
            "kind": "mlp",
            "intermediate_size": config.take("ffn_hidden_size") or 4 * hidden,
            "activation": activation(config, "activation"),
        }
        config.expect("apply_residual_connection_post_layernorm", False, why="is not computed by the model class")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {"hidden_size": hidden, "tie_word_embeddings": bool(config.take("tie_word_embeddings"))},
            "position": _position(config, head_dim, length),
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_epsilon")},
            "max_position_embeddings": length,
            "mixers": {"attn": mixer | ({"qkv_bias": True, "o_bias": True} if biases else {})},
            "ffns": {"mlp": mlp | ({"bias": True} if biases else {})},
            "stack": {
                "num_layers": config.take("num_hidden_layers"),
                "block": _block(config),
                "mixer": "attn",
                "ffn": "mlp",
            },
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        stated = {**self.defaults, **config}
        heads = stated["num_attention_heads"]
        groups, norms = heads, ("input_layernorm", "post_attention_layernorm")
        if stated["new_decoder_architecture"]:
            groups = stated["num_kv_heads"] or heads
            norms = norms if stated["num_ln_in_parallel_attn"] == 1 else ("ln_attn", "ln_mlp")
        elif stated["multi_query"]:
            groups = None
        return (
            rule("transformer.word_embeddings.weight", "embed_tokens.weight"),
            *megatron_layer("transformer.h.{i}", "self_attention", groups=groups, norms=norms),
            *both("transformer.ln_f", "norm"),
            rule("lm_head.weight", "lm_head.weight"),
        )


def _position(config: Config, head_dim: int, length: int) -> dict[str, Any]:
    if not config.take("alibi"):
        return rope(config, head_dim=head_dim, length=length)
    config.ignore("rope_parameters", "rope_theta", "rope_scaling", why="ALiBi takes the place of the rotation")
    return {"kind": "alibi", "scaled": True}


def _kv_heads(config: Config, heads: int) -> int:
    """Heads of keys and values. ``multi_query`` has one, unless the later form is stated, which overrules it."""
    later, one = config.take("new_decoder_architecture"), config.take("multi_query")
    if later:
        config.ignore("multi_query", why="new_decoder_architecture overrules it")
        return config.take("num_kv_heads") or heads
    config.ignore("num_kv_heads", why="of the new_decoder_architecture")
    return 1 if one else heads


def _block(config: Config) -> Any:
    later, parallel, norms = (
        config.take(name) for name in ("new_decoder_architecture", "parallel_attn", "num_ln_in_parallel_attn")
    )
    if later and not parallel:
        config.refuse("parallel_attn", "is not computed with new_decoder_architecture")
    if not parallel:
        return "pre_norm"
    if norms not in (None, 1, 2) or (norms == 2 and not later):
        config.refuse(
            "num_ln_in_parallel_attn", "is not computed here; the old form has one norm, the later one or two"
        )
    return {"kind": "parallel", "shared_norm": not later or norms == 1}
