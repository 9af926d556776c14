"""ModernBERT: a norm before each branch but the first, gated feed-forwards, windows in two layers of three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, rope, stack, stated_types, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.encoders import (
    LABELLED,
    MASKED,
    PLAIN,
    SPAN,
    TEXT_CLASS,
    TOKEN_CLASS,
    form,
    labels,
    no_labels,
)

FULL, SLIDING = "full_attention", "sliding_attention"
_TRAINING = ("embedding_dropout", "mlp_dropout", "classifier_dropout", "initializer_cutoff_factor", "norm_dropout")


class ModernBert(Checkpoint):
    """ModernBertModel, and ModernBertFor…"""

    model_class: ClassVar[str] = "ModernBertModel"
    forms: ClassVar[Mapping[str, str]] = {
        "ModernBertModel": PLAIN,
        "ModernBertForMaskedLM": MASKED,
        "ModernBertForSequenceClassification": TEXT_CLASS,
        "ModernBertForTokenClassification": TOKEN_CLASS,
        "ModernBertForQuestionAnswering": SPAN,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "pad_token_id": 50283,
        "eos_token_id": 50282,
        "bos_token_id": 50281,
        "attention_bias": False,
        "layer_types": None,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "local_attention": 128,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "tie_word_embeddings": True,
    }
    dropped: ClassVar[Sequence[Dropped]] = (
        Dropped(r"(model\.)?layers\.\d+\.attn\.rotary_emb\.inv_freq", "frequencies follow from the configuration"),
    )
    optional_prefix: ClassVar[str] = "model."

    def spec(self, config: Config) -> dict[str, Any]:
        found = form(config, self.forms)
        tied = bool(config.take("tie_word_embeddings"))
        hidden, heads, layers = (
            config.take(name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        length, head_dim = config.take("max_position_embeddings"), hidden // heads
        config.ignore(*_TRAINING, why="training only")
        config.ignore("sparse_prediction", "sparse_pred_ignore_index", why="which logits are computed in training")
        config.ignore(
            "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad", why="how it is computed"
        )
        config.ignore("cls_token_id", "sep_token_id", "position_embedding_type", why="the model class never reads it")
        config.ignore("layer_norm_eps", why="norm_eps says it")
        types = _types(config, layers)
        mixer: dict[str, Any] = {"kind": "gqa", "num_heads": heads, "num_kv_heads": heads, "head_dim": head_dim}
        if config.take("attention_bias"):
            mixer |= {"qkv_bias": True, "o_bias": True}
        local = {
            "sliding_window": config.take("local_attention"),
            "position": rope(config, head_dim=head_dim, length=length, of=SLIDING, theta_names=("local_rope_theta",)),
        }
        names, mixers = _mixers(types, mixer, local)
        eps, bias = config.take("norm_eps"), bool(config.take("norm_bias"))
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": hidden,
                **({"tie_word_embeddings": tied} if found == MASKED else {}),
                "norm": True,
            },
            "position": rope(config, head_dim=head_dim, length=length, of=FULL, theta_names=("global_rope_theta",)),
            "norm": {"kind": "layer_norm", "eps": eps, **({} if bias else {"bias": False})},
            "max_position_embeddings": length,
            "mixers": mixers,
            "ffns": {"mlp": _mlp(config)},
            "encoder": stack(names, "mlp"),
            "head": _head(config, found),
        }

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        layer, ours = "model.layers.{i}", "layers.{i}"
        qkv = tuple(f"{ours}.mixer.{name}_proj" for name in "qkv")
        return (
            rule("model.embeddings.tok_embeddings.weight", "embed_tokens.weight"),
            *both("model.embeddings.norm", "embed_norm"),
            *both(f"{layer}.attn_norm", f"{ours}.mixer_norm"),
            *both(f"{layer}.attn.Wqkv", *qkv),
            *both(f"{layer}.attn.Wo", f"{ours}.mixer.o_proj"),
            *both(f"{layer}.mlp_norm", f"{ours}.ffn_norm"),
            *both(f"{layer}.mlp.Wi", f"{ours}.ffn.gate_proj", f"{ours}.ffn.up_proj"),
            *both(f"{layer}.mlp.Wo", f"{ours}.ffn.down_proj"),
            *both("model.final_norm", "norm"),
            *both("head.dense", "head_dense"),
            *both("head.norm", "head_norm"),
            *both("decoder", "lm_head"),
            *both("classifier", "classifier"),
        )


def _types(config: Config, layers: int) -> list[str]:
    """What each layer sees: as listed, or everything in every third, the first one included."""
    stated = stated_types(config, layers, FULL, SLIDING)
    if stated is not None:
        config.ignore("global_attn_every_n_layers", why="layer_types says it")
        return stated
    every = config.take("global_attn_every_n_layers")
    return [SLIDING if layer % every else FULL for layer in range(layers)]


def _mixers(types: Sequence[str], mixer: dict[str, Any], local: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """(a mixer a layer, the mixers); the first layer has no norm before it, since the embedding has one behind it."""
    bare = {"block": {"kind": "pre_norm", "mixer_norm": False}}
    mixers: dict[str, Any] = {"first": {**mixer, **(local if types[0] == SLIDING else {}), **bare}}
    if FULL in types[1:]:
        mixers["full"] = mixer
    if SLIDING in types[1:]:
        mixers["local"] = ({"extends": "full"} if "full" in mixers else mixer) | local
    return ["first", *("local" if kind == SLIDING else "full" for kind in types[1:])], mixers


def _mlp(config: Config) -> dict[str, Any]:
    function = activation(config, "hidden_activation")
    kind = "geglu" if function in ("gelu", "gelu_tanh") else "swiglu"
    biases = {"bias": True} if config.take("mlp_bias") else {}
    return {"kind": kind, "intermediate_size": config.take("intermediate_size"), "activation": function, **biases}


def _head(config: Config, found: str) -> Any:
    if found == PLAIN:
        no_labels(config)
        why = "of heads, and this class has none"
        config.ignore("decoder_bias", "classifier_bias", "classifier_activation", "classifier_pooling", why=why)
        return "none"
    act, bias = activation(config, "classifier_activation"), bool(config.take("classifier_bias"))
    biases = {} if bias else {"dense_bias": False}
    pool = config.take("classifier_pooling")
    if found in LABELLED:
        config.ignore("decoder_bias", why="of the head that predicts tokens")
        pool = pool if found == TEXT_CLASS else "none"
        head = {"kind": "classifier", "num_labels": labels(config, found), "pool": pool, "activation": act}
        return {**head, **biases, "norm": True}
    no_labels(config)
    decoder = {} if config.take("decoder_bias") else {"bias": False}
    return {"kind": "mlm", "activation": act, **biases, **decoder}
