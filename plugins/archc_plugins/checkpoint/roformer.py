"""RoFormer: BERT's layers with pairs of neighbours turned, and a table that may be narrower than the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import DEFAULT_THETA, activation, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.encoders import (
    LABELLED,
    MASKED,
    OWN_BIAS,
    PLAIN,
    SPAN,
    TEXT_CLASS,
    TOKEN_CLASS,
    attention,
    bert_layer,
    bert_predictions,
    bias_again,
    form,
    form_of,
    ignore_training,
    mlp,
    no_labels,
    own_bias,
    pooled_class,
    section,
)


class RoFormer(Checkpoint):
    """RoFormerModel, and RoFormerFor…, among them the one that is a decoder."""

    model_class: ClassVar[str] = "RoFormerModel"
    forms: ClassVar[Mapping[str, str]] = {
        "RoFormerModel": PLAIN,
        "RoFormerForMaskedLM": MASKED,
        "RoFormerForCausalLM": MASKED,
        "RoFormerForSequenceClassification": TEXT_CLASS,
        "RoFormerForTokenClassification": TOKEN_CLASS,
        "RoFormerForQuestionAnswering": SPAN,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50000,
        "embedding_size": None,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 1536,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "rotary_value": False,
        "tie_word_embeddings": True,
    }
    dropped: ClassVar[Sequence[Dropped]] = (
        Dropped(
            r"(roformer\.)?encoder\.embed_positions\.weight", "sines and cosines follow from the position", kept=True
        ),
    )
    optional_prefix: ClassVar[str] = "roformer."

    def spec(self, config: Config) -> dict[str, Any]:
        found = form(config, self.forms)
        tied, types = bool(config.take("tie_word_embeddings")), config.take("type_vocab_size")
        hidden, width = config.take("hidden_size"), config.take("embedding_size")
        ignore_training(config)
        narrow = {"embedding_size": width, "projection": "last", "projection_bias": True}
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": hidden,
                **({"tie_word_embeddings": tied} if found == MASKED else {}),
                **({} if width in (None, hidden) else narrow),
                **({"type_vocab_size": types} if types else {}),
                "norm": True,
            },
            "position": {"kind": "rope", "theta": DEFAULT_THETA, "interleaved": True},
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_eps")},
            "max_position_embeddings": config.take("max_position_embeddings"),
            "mixers": {"attn": attention(config, rotary_value=bool(config.take("rotary_value")))},
            "ffns": {"mlp": mlp(config)},
            section(config): {
                "num_layers": config.take("num_hidden_layers"),
                "block": "post_norm",
                "mixer": "attn",
                "ffn": "mlp",
            },
            "head": _head(config, found),
        }

    def drops(self, config: Mapping[str, Any]) -> Sequence[Dropped]:
        return (*self.dropped, bias_again("cls.predictions"))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {OWN_BIAS: own_bias(self.rules(graph, config))}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        found = form_of(config, self.forms)
        return (
            rule("roformer.embeddings.word_embeddings.weight", "embed_tokens.weight"),
            rule("roformer.embeddings.token_type_embeddings.weight", "token_type_embeddings.weight"),
            *both("roformer.embeddings.LayerNorm", "embed_norm"),
            *both("roformer.embeddings_project", "embed_proj"),
            *bert_layer("roformer.encoder.layer.{i}"),
            *_head_rules(str(found)),
        )


def _head(config: Config, found: str) -> Any:
    if found in LABELLED:
        return pooled_class(config, found, act=activation(config, "hidden_act"))
    no_labels(config)
    return {"kind": "mlm", "activation": activation(config, "hidden_act")} if found == MASKED else "none"


def _head_rules(found: str) -> tuple[Rule, ...]:
    if found == MASKED:
        return bert_predictions("cls.predictions", tied=False)
    theirs = {TEXT_CLASS: "classifier.out_proj", SPAN: "qa_outputs"}.get(found, "classifier")
    return (*both("classifier.dense", "head_dense"), *both(theirs, "classifier"))
