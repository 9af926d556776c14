"""BERT and RoBERTa: norms after each addition, learned positions, token types; the class says which head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, tokenizer
from archc.checkpoint.config import Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.rules import Dropped, LeftOut, Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.encoders import (
    LABELLED,
    MASKED,
    OWN_BIAS,
    POOLED,
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
    old_names,
    own_bias,
    pooled_class,
    section,
)

NEXT_SENTENCE = "next sentence"
_NEVER_READ = ("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")
_NEVER_READ_EITHER = ("pooler_size_per_head", "pooler_type")


class Bert(Checkpoint):
    """BertModel, and BertFor… with a head that predicts tokens or labels."""

    model_class: ClassVar[str] = "BertModel"
    base: ClassVar[str] = "bert"
    """Beginning of the names of what is no head."""
    forms: ClassVar[Mapping[str, str]] = {
        "BertModel": POOLED,
        "BertForMaskedLM": MASKED,
        "BertForPreTraining": MASKED,
        "BertLMHeadModel": MASKED,
        "BertForSequenceClassification": TEXT_CLASS,
        "BertForNextSentencePrediction": NEXT_SENTENCE,
        "BertForTokenClassification": TOKEN_CLASS,
        "BertForQuestionAnswering": SPAN,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    optional_prefix: ClassVar[str] = "bert."

    def spec(self, config: Config) -> dict[str, Any]:
        found = form(config, self.forms)
        tied = bool(config.take("tie_word_embeddings"))
        ignore_training(config)
        config.expect("position_embedding_type", "absolute", None, why="asks for positions on the scores")
        config.ignore(*_NEVER_READ, *_NEVER_READ_EITHER, why="the model class never reads it")
        types = config.take("type_vocab_size")
        offset, length = self.positions(config)
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": config.take("hidden_size"),
                **({"tie_word_embeddings": tied} if found == MASKED else {}),
                **({"type_vocab_size": types} if types else {}),
                "norm": True,
            },
            "position": {"kind": "learned", "offset": offset} if offset else "learned",
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_eps")},
            "max_position_embeddings": length,
            "mixers": {"attn": attention(config)},
            "ffns": {"mlp": mlp(config)},
            section(config): {
                "num_layers": config.take("num_hidden_layers"),
                "block": "post_norm",
                "mixer": "attn",
                "ffn": "mlp",
            },
            "head": self.head(config, found),
        }

    def positions(self, config: Config) -> tuple[int, int]:
        """(rows of the table before position 0, positions)."""
        return 0, config.take("max_position_embeddings")

    def head(self, config: Config, found: str) -> Any:
        """What reads the last layer."""
        if found in LABELLED:
            return pooled_class(config, found, act="tanh")
        no_labels(config)
        if found == MASKED:
            return {"kind": "mlm", "activation": self.head_activation(config)}
        return "pooler" if found == POOLED else {"kind": "classifier", "num_labels": 2, "activation": "tanh"}

    def head_activation(self, config: Config) -> str:
        """The activation of the head that predicts tokens."""
        return activation(config, "hidden_act")

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        what = "the pooler, which this class does not read"
        return (LeftOut("*pooler.dense.*", what), LeftOut("cls.seq_relationship.*", "the head of next sentences"))

    def drops(self, config: Mapping[str, Any]) -> Sequence[Dropped]:
        return (
            Dropped(rf"({self.base}\.)?embeddings\.position_ids", "0, 1, 2, …"),
            bias_again("cls.predictions"),
            bias_again("lm_head"),
        )

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*self.body(), *self.head_rules(form_of(config, self.forms) or POOLED, tied=False))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        once = own_bias(self.rules(graph, config))
        return {OWN_BIAS: once, "norms of gamma and beta": old_names(once)}

    def body(self) -> tuple[Rule, ...]:
        """Everything but the head."""
        embeddings = f"{self.base}.embeddings"
        return (
            rule(f"{embeddings}.word_embeddings.weight", "embed_tokens.weight"),
            rule(f"{embeddings}.position_embeddings.weight", "embed_positions.weight"),
            rule(f"{embeddings}.token_type_embeddings.weight", "token_type_embeddings.weight"),
            *both(f"{embeddings}.LayerNorm", "embed_norm"),
            *bert_layer(f"{self.base}.encoder.layer.{{i}}"),
        )

    def head_rules(self, found: str, *, tied: bool) -> tuple[Rule, ...]:
        """The head's tensors."""
        if found == MASKED:
            return bert_predictions("cls.predictions", tied=tied)
        pooler = f"{self.base}.pooler.dense"
        if found == POOLED:
            return both(pooler, "pooler")
        theirs = {NEXT_SENTENCE: "cls.seq_relationship", SPAN: "qa_outputs"}.get(found, "classifier")
        return (*both(pooler, "head_dense"), *both(theirs, "classifier"))


class Roberta(Bert):
    """RobertaModel, and RobertaFor…: rows of the position table up to the padding id's stand before position 0."""

    model_class: ClassVar[str] = "RobertaModel"
    base: ClassVar[str] = "roberta"
    forms: ClassVar[Mapping[str, str]] = {
        "RobertaModel": POOLED,
        "RobertaForMaskedLM": MASKED,
        "RobertaForCausalLM": MASKED,
        "RobertaForSequenceClassification": TEXT_CLASS,
        "RobertaForTokenClassification": TOKEN_CLASS,
        "RobertaForQuestionAnswering": SPAN,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **Bert.defaults,
        "vocab_size": 50265,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    optional_prefix: ClassVar[str] = "roberta."

    def positions(self, config: Config) -> tuple[int, int]:
        offset = config.take("pad_token_id") + 1
        return offset, config.take("max_position_embeddings") - offset

    def head_activation(self, config: Config) -> str:
        # Whatever hidden_act says.
        return "gelu"

    def head_rules(self, found: str, *, tied: bool) -> tuple[Rule, ...]:
        if found == MASKED:
            return (
                *both("lm_head.dense", "head_dense"),
                *both("lm_head.layer_norm", "head_norm"),
                rule("lm_head.decoder.weight", "lm_head.weight"),
                rule("lm_head.bias" if tied else "lm_head.decoder.bias", "lm_head.bias"),
            )
        if found == TEXT_CLASS:
            return (*both("classifier.dense", "head_dense"), *both("classifier.out_proj", "classifier"))
        return super().head_rules(found, tied=tied)


class XLMRoberta(Roberta):
    """XLMRobertaModel, and XLMRobertaFor…: RoBERTa under another name."""

    model_class: ClassVar[str] = "XLMRobertaModel"
    forms: ClassVar[Mapping[str, str]] = {f"XLM{name}": found for name, found in Roberta.forms.items()}
    defaults: ClassVar[Mapping[str, Any]] = {**Roberta.defaults, "vocab_size": 30522}
