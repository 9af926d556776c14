"""OPT: learned positions from row 2 on, norms before or after the branches, and tables narrower than the model in one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Rule, both, rule
from archc.graph.graph import Graph

_EPS = 1e-5
"""Of torch's LayerNorm; no key states another."""


class OPT(Checkpoint):
    """OPTForCausalLM."""

    model_class: ClassVar[str] = "OPTForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "word_embed_proj_dim": None,
        "num_attention_heads": 12,
        "activation_function": "relu",
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
    }
    optional_prefix: ClassVar[str] = "model."

    def spec(self, config: Config) -> dict[str, Any]:
        hidden, heads = config.take("hidden_size"), config.take("num_attention_heads")
        biases = bool(config.take("enable_bias"))
        before, unnormed = config.take("do_layer_norm_before"), config.take("_remove_final_layer_norm")
        config.expect("layer_norm_elementwise_affine", True, why="asks for norms without weights")
        config.ignore("layerdrop", "activation_dropout", why="training only")
        config.ignore("init_std", why="of weights that are not loaded")
        config.ignore("prefix", why="of the interface")
        mixer = {"kind": "gqa", "num_heads": heads, "num_kv_heads": heads, "head_dim": hidden // heads}
        mlp = {
            "kind": "mlp",
            "intermediate_size": config.take("ffn_dim"),
            "activation": activation(config, "activation_function"),
        }
        return {
            "tokenizer": tokenizer(config),
            "embedding": _embedding(config, hidden),
            "position": {"kind": "learned", "offset": 2},
            "norm": {"kind": "layer_norm", "eps": _EPS},
            "max_position_embeddings": config.take("max_position_embeddings"),
            "mixers": {"attn": mixer | ({"qkv_bias": True, "o_bias": True} if biases else {})},
            "ffns": {"mlp": mlp | ({"bias": True} if biases else {})},
            "stack": {
                "num_layers": config.take("num_hidden_layers"),
                "block": "pre_norm" if before else "post_norm",
                "mixer": "attn",
                "ffn": "mlp",
                **({"final_norm": False} if before and unnormed else {}),
            },
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        decoder, layer = "model.decoder", "model.decoder.layers.{i}"
        return (
            rule(f"{decoder}.embed_tokens.weight", "embed_tokens.weight"),
            rule(f"{decoder}.embed_positions.weight", "embed_positions.weight"),
            rule(f"{decoder}.project_in.weight", "embed_proj.weight"),
            *both(f"{layer}.self_attn_layer_norm", "layers.{i}.mixer_norm"),
            *(
                entry
                for name in ("q", "k", "v")
                for entry in both(f"{layer}.self_attn.{name}_proj", f"layers.{{i}}.mixer.{name}_proj")
            ),
            *both(f"{layer}.self_attn.out_proj", "layers.{i}.mixer.o_proj"),
            *both(f"{layer}.final_layer_norm", "layers.{i}.ffn_norm"),
            *both(f"{layer}.fc1", "layers.{i}.ffn.up_proj"),
            *both(f"{layer}.fc2", "layers.{i}.ffn.down_proj"),
            *both(f"{decoder}.final_layer_norm", "norm"),
            rule(f"{decoder}.project_out.weight", "head_proj.weight"),
            rule("lm_head.weight", "lm_head.weight"),
        )


def _embedding(config: Config, hidden: int) -> dict[str, Any]:
    """The table; where it is narrower than the model, projections stand at both ends, and it has to be the head's too."""
    tied, width = bool(config.take("tie_word_embeddings")), config.take("word_embed_proj_dim") or hidden
    found = {"hidden_size": hidden, "tie_word_embeddings": tied}
    if width == hidden:
        return found
    if not tied:
        config.refuse("word_embed_proj_dim", "asks for a table narrower than the model beside a head of its own")
    return {**found, "embedding_size": width}
