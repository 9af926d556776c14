"""ViT: patches of a picture, a learned first token and positions, norms before branches; files have the names of BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.encoders import (
    POOLED,
    TEXT_CLASS,
    attention,
    form,
    ignore_training,
    labels,
    mlp,
    no_labels,
)


class ViT(Checkpoint):
    """ViTModel with its pooler, and ViTForImageClassification."""

    model_class: ClassVar[str] = "ViTModel"
    forms: ClassVar[Mapping[str, str]] = {"ViTModel": POOLED, "ViTForImageClassification": TEXT_CLASS}
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "pooler_output_size": None,
        "pooler_act": "tanh",
    }
    optional_prefix: ClassVar[str] = "vit."

    def spec(self, config: Config) -> dict[str, Any]:
        found = form(config, self.forms)
        hidden = config.take("hidden_size")
        ignore_training(config)
        config.ignore("encoder_stride", why="of masked image modelling")
        config.ignore("tie_word_embeddings", why="there are no words")
        config.ignore("layer_norm_type", why="the model class never reads it")
        mixer = attention(config)
        if not config.take("qkv_bias"):
            del mixer["qkv_bias"]
        return {
            "tokenizer": "none",
            "embedding": {
                "kind": "patch",
                "hidden_size": hidden,
                "image_size": _side(config, "image_size"),
                "patch_size": _side(config, "patch_size"),
                "num_channels": config.take("num_channels"),
            },
            "position": "learned",
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_eps")},
            "mixers": {"attn": mixer},
            "ffns": {"mlp": mlp(config)},
            "encoder": {
                "num_layers": config.take("num_hidden_layers"),
                "block": "pre_norm",
                "mixer": "attn",
                "ffn": "mlp",
            },
            "head": _head(config, found, hidden),
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        embeddings, layer, ours = "vit.embeddings", "vit.encoder.layer.{i}", "layers.{i}"
        hidden = int(config.get("hidden_size", self.defaults["hidden_size"]))
        return (
            rule(f"{embeddings}.cls_token", "cls_token.weight", view=(1, 1, hidden)),
            rule(f"{embeddings}.position_embeddings", "embed_positions.weight", view=(1, -1, hidden)),
            *both(f"{embeddings}.patch_embeddings.projection", "patch_proj"),
            *both(f"{layer}.layernorm_before", f"{ours}.mixer_norm"),
            *(
                entry
                for theirs, name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
                for entry in both(f"{layer}.attention.attention.{theirs}", f"{ours}.mixer.{name}")
            ),
            *both(f"{layer}.attention.output.dense", f"{ours}.mixer.o_proj"),
            *both(f"{layer}.layernorm_after", f"{ours}.ffn_norm"),
            *both(f"{layer}.intermediate.dense", f"{ours}.ffn.up_proj"),
            *both(f"{layer}.output.dense", f"{ours}.ffn.down_proj"),
            *both("vit.layernorm", "norm"),
            *both("vit.pooler.dense", "pooler"),
            *both("classifier", "classifier"),
        )


def _side(config: Config, name: str) -> int:
    """Pixels a side; a picture that is no square, or a patch, is a problem."""
    value: int | list[int] = config.take(name)
    sides = value if isinstance(value, list) else [value]
    if len(set(sides)) != 1:
        config.refuse(name, "is no square")
    return sides[0]


def _head(config: Config, found: str, hidden: int) -> Any:
    if found == TEXT_CLASS:
        config.ignore("pooler_output_size", "pooler_act", why="of the pooler, which this class has not")
        return {"kind": "classifier", "num_labels": labels(config, found)}
    no_labels(config)
    config.expect("pooler_output_size", None, hidden, why="is another width than the model's")
    act = config.take("pooler_act")
    return "pooler" if act == "tanh" else {"kind": "pooler", "activation": activation(config, "pooler_act")}
