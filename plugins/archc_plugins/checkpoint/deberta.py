"""DeBERTa: contents meet relative positions; queries, keys and values are one tensor, head by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation, tokenizer
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
    bert_predictions,
    bias_again,
    form,
    form_of,
    ignore_training,
    mlp,
    no_labels,
    own_bias,
    pooled_class,
)

KEYS, QUERIES = "c2p", "p2c"
"""What the configuration calls contents that meet position keys, and contents that position queries meet."""


class Deberta(Checkpoint):
    """DebertaModel, and DebertaFor…; the first version, whose positions have projections of their own."""

    model_class: ClassVar[str] = "DebertaModel"
    forms: ClassVar[Mapping[str, str]] = {
        "DebertaModel": PLAIN,
        "DebertaForMaskedLM": MASKED,
        "DebertaForSequenceClassification": TEXT_CLASS,
        "DebertaForTokenClassification": TOKEN_CLASS,
        "DebertaForQuestionAnswering": SPAN,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "pad_token_id": 0,
        "position_biased_input": True,
        "pos_att_type": None,
        "pooler_hidden_act": "gelu",
        "legacy": True,
        "tie_word_embeddings": True,
    }
    optional_prefix: ClassVar[str] = "deberta."
    dropped: ClassVar[Sequence[Dropped]] = (Dropped(r"(deberta\.)?embeddings\.position_ids", "0, 1, 2, …"),)

    def spec(self, config: Config) -> dict[str, Any]:
        found = form(config, self.forms)
        tied, types = bool(config.take("tie_word_embeddings")), config.take("type_vocab_size")
        ignore_training(config)
        config.ignore("pooler_dropout", "initializer_range", why="training only")
        config.expect("legacy", True, why="asks for heads under other names")
        config.expect("talking_head", False, None, why="asks for heads that are mixed")
        hidden = config.take("hidden_size")
        config.expect("embedding_size", hidden, why="asks for a narrow table")
        pooler = activation(config, "pooler_hidden_act")
        config.expect("pooler_hidden_size", hidden, None, why="asks for a vector of another width")
        length = config.take("max_position_embeddings")
        return {
            "tokenizer": tokenizer(config),
            "embedding": {
                "hidden_size": hidden,
                **({"tie_word_embeddings": tied} if found == MASKED else {}),
                **({"type_vocab_size": types} if types else {}),
                "norm": True,
            },
            "position": self._position(config, length),
            "norm": {"kind": "layer_norm", "eps": config.take("layer_norm_eps")},
            "max_position_embeddings": length,
            "mixers": {"attn": {**attention(config, k_bias=False), **self._scale(config)}},
            "ffns": {"mlp": mlp(config)},
            "encoder": {
                "num_layers": config.take("num_hidden_layers"),
                "block": "post_norm",
                "mixer": "attn",
                "ffn": "mlp",
            },
            "head": self._head(config, found, pooler),
        }

    def _position(self, config: Config, length: int) -> Any:
        """Relative positions on the scores, or absolute ones on the embedding, or none."""
        is_added = config.take("position_biased_input")
        if not config.take("relative_attention"):
            config.ignore("max_relative_positions", why="of relative attention")
            return "learned" if is_added else "none"
        if is_added:
            config.refuse("position_biased_input", "asks for positions on the embedding beside those on the scores")
        reach, terms = config.take("max_relative_positions"), self._terms(config)
        return {
            "kind": "disentangled",
            "max_relative_positions": length if reach < 1 else reach,
            **({} if KEYS in terms else {"position_keys": False}),
            **({} if QUERIES in terms else {"position_queries": False}),
        }

    def _scale(self, config: Config) -> dict[str, str]:
        """What scores are divided by counts the terms even where relative attention, which adds them, is off."""
        terms = self._terms(config) if config.data.get("pos_att_type") else ()
        if config.data.get("relative_attention") or not terms:
            config.take("pos_att_type")
            return {}
        width = config.take("hidden_size") // config.take("num_attention_heads")
        return {"softmax_scale": f"1/sqrt({width * (1 + len(terms))})"}

    def _terms(self, config: Config) -> Sequence[str]:
        """What relative positions meet: a list, or names between bars."""
        stated = config.take("pos_att_type") or ()
        terms = stated.split("|") if isinstance(stated, str) else list(stated)
        if not terms or not set(terms) <= {KEYS, QUERIES}:
            config.refuse("pos_att_type", f"should be one or both of {KEYS} and {QUERIES}")
        return terms

    def _head(self, config: Config, found: str, pooler: str) -> Any:
        if found in LABELLED:
            return pooled_class(config, found, act=pooler)
        no_labels(config)
        return {"kind": "mlm", "activation": activation(config, "hidden_act")} if found == MASKED else "none"

    def drops(self, config: Mapping[str, Any]) -> Sequence[Dropped]:
        return (*self.dropped, bias_again("cls.predictions"))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {OWN_BIAS: own_bias(self.rules(graph, config))}

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        heads, layer, ours = self._heads(config), "deberta.encoder.layer.{i}", "layers.{i}"
        inner = f"{layer}.attention.self"
        projections = [f"{ours}.mixer.{name}_proj.weight" for name in "qkv"]
        return (
            rule("deberta.embeddings.word_embeddings.weight", "embed_tokens.weight"),
            rule("deberta.embeddings.position_embeddings.weight", "embed_positions.weight"),
            rule("deberta.embeddings.token_type_embeddings.weight", "token_type_embeddings.weight"),
            *both("deberta.embeddings.LayerNorm", "embed_norm"),
            rule("deberta.encoder.rel_embeddings.weight", "rel_embeddings_0.weight"),
            rule(f"{inner}.in_proj.weight", *projections, groups=heads),
            rule(f"{inner}.q_bias", f"{ours}.mixer.q_proj.bias"),
            rule(f"{inner}.v_bias", f"{ours}.mixer.v_proj.bias"),
            rule(f"{inner}.pos_proj.weight", f"{ours}.mixer.pos_proj.weight"),
            *both(f"{inner}.pos_q_proj", f"{ours}.mixer.pos_q_proj"),
            *both(f"{layer}.attention.output.dense", f"{ours}.mixer.o_proj"),
            *both(f"{layer}.attention.output.LayerNorm", f"{ours}.mixer_norm"),
            *both(f"{layer}.intermediate.dense", f"{ours}.ffn.up_proj"),
            *both(f"{layer}.output.dense", f"{ours}.ffn.down_proj"),
            *both(f"{layer}.output.LayerNorm", f"{ours}.ffn_norm"),
            *self._head_rules(form_of(config, self.forms) or PLAIN),
        )

    def _head_rules(self, found: str) -> tuple[Rule, ...]:
        if found == MASKED:
            return bert_predictions("cls.predictions", tied=False)
        if found == PLAIN:
            return ()
        theirs = "qa_outputs" if found == SPAN else "classifier"
        return (*both("pooler.dense", "head_dense"), *both(theirs, "classifier"))

    def _heads(self, config: Mapping[str, Any]) -> int:
        return int(config.get("num_attention_heads", self.defaults["num_attention_heads"]))
