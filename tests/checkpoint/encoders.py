"""Tiny encoders: what transformers is asked to build, and which of its outputs archc's must equal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BATCH, TOKENS = 2, 20
LENGTHS = (20, 13)
"""Tokens of each row where rows are padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """``outputs`` are fields of transformers' output, in the order of archc's."""

    config_class: str
    model_class: str
    config: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("logits",)
    pad: int = 0
    tolerance: float = 5e-5
    by_row: bool = False
    """Whether the outputs have one row a text, so that padding has none."""


SMALL = {
    "vocab_size": 90,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
BERT = {**SMALL, "type_vocab_size": 3, "layer_norm_eps": 0.01}
ROBERTA = {**BERT, "pad_token_id": 1}
MODERN = {
    **SMALL,
    "num_hidden_layers": 4,
    "norm_eps": 0.01,
    "local_attention": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 900.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
}
DEBERTA = {
    **SMALL,
    "type_vocab_size": 0,
    "layer_norm_eps": 0.01,
    "relative_attention": True,
    "position_biased_input": False,
    "max_relative_positions": 9,
    "pos_att_type": ["c2p", "p2c"],
}
BIG_BIRD = {**BERT, "attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}
LONGFORMER = {**ROBERTA, "type_vocab_size": 1, "attention_window": [8, 4, 8]}
VIT = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "layer_norm_eps": 0.01,
    "image_size": 24,
    "patch_size": 8,
    "num_channels": 2,
}
THREE = {"id2label": {0: "a", 1: "b", 2: "c"}}
HIDDEN, POOLED, SPAN = ("last_hidden_state",), ("last_hidden_state", "pooler_output"), ("start_logits", "end_logits")


def _of(config_class: str, base: dict[str, Any], **more: Any):
    def make(model_class: str, outputs: tuple[str, ...] = ("logits",), *, by_row: bool = False, **changes: Any):
        config = {**base, **changes}
        return Encoder(
            config_class=config_class, model_class=model_class, config=config, outputs=outputs, by_row=by_row, **more
        )

    return make


bert, roberta = _of("BertConfig", BERT), _of("RobertaConfig", ROBERTA, pad=1)
xlm = _of("XLMRobertaConfig", ROBERTA, pad=1)
roformer, modern = _of("RoFormerConfig", BERT), _of("ModernBertConfig", MODERN)
vit = _of("ViTConfig", VIT)
big_bird = _of("BigBirdConfig", BIG_BIRD)
deberta, longformer = _of("DebertaConfig", DEBERTA), _of("LongformerConfig", LONGFORMER, pad=1)

ENCODERS = {
    "bert": bert("BertModel", POOLED),
    "bert masked": bert("BertForMaskedLM"),
    "bert masked, with a head of its own": bert("BertForMaskedLM", tie_word_embeddings=False),
    "bert texts": bert("BertForSequenceClassification", by_row=True, **THREE),
    "bert next sentence": bert("BertForNextSentencePrediction", by_row=True),
    "bert tokens": bert("BertForTokenClassification", **THREE),
    "bert answers": bert("BertForQuestionAnswering", SPAN, hidden_act="gelu_new"),
    "roberta": roberta("RobertaModel", POOLED, type_vocab_size=1),
    "roberta masked": roberta("RobertaForMaskedLM", hidden_act="relu"),
    "roberta texts": roberta("RobertaForSequenceClassification", by_row=True, **THREE),
    "roberta tokens": roberta("RobertaForTokenClassification", **THREE),
    "roberta answers": roberta("RobertaForQuestionAnswering", SPAN),
    "xlm-roberta masked": xlm("XLMRobertaForMaskedLM"),
    "roformer": roformer("RoFormerModel", HIDDEN),
    "roformer with a narrow table": roformer("RoFormerModel", HIDDEN, embedding_size=30),
    "roformer masked": roformer("RoFormerForMaskedLM", embedding_size=30),
    "roformer masked, with a head of its own": roformer(
        "RoFormerForMaskedLM", embedding_size=30, tie_word_embeddings=False
    ),
    "roformer that turns values": roformer("RoFormerForMaskedLM", rotary_value=True),
    "roformer texts": roformer("RoFormerForSequenceClassification", by_row=True, hidden_act="relu", **THREE),
    "roformer tokens": roformer("RoFormerForTokenClassification", **THREE),
    "roformer answers": roformer("RoFormerForQuestionAnswering", SPAN),
    "deberta": deberta("DebertaModel", HIDDEN),
    "deberta masked": deberta("DebertaForMaskedLM"),
    "deberta, position keys alone": deberta("DebertaModel", HIDDEN, pos_att_type=["c2p"], type_vocab_size=2),
    "deberta with absolute positions": deberta(
        "DebertaModel", HIDDEN, relative_attention=False, position_biased_input=True
    ),
    "deberta texts": deberta("DebertaForSequenceClassification", by_row=True, **THREE),
    "deberta answers": deberta("DebertaForQuestionAnswering", SPAN),
    "longformer": longformer("LongformerModel", POOLED),
    "longformer masked": longformer("LongformerForMaskedLM", attention_window=8),
    "longformer texts": longformer("LongformerForSequenceClassification", by_row=True, **THREE),
    "big_bird": big_bird("BigBirdModel", POOLED),
    "big_bird masked": big_bird("BigBirdForMaskedLM", rescale_embeddings=True, use_bias=False),
    "big_bird texts": big_bird("BigBirdForSequenceClassification", by_row=True, **THREE),
    "big_bird, all with all": big_bird("BigBirdModel", POOLED, attention_type="original_full"),
    "modernbert": modern("ModernBertModel", HIDDEN),
    "modernbert masked": modern("ModernBertForMaskedLM"),
    "modernbert with biases": modern(
        "ModernBertForMaskedLM", attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True
    ),
    "modernbert without some": modern("ModernBertForMaskedLM", decoder_bias=False, tie_word_embeddings=False),
    "modernbert texts": modern("ModernBertForSequenceClassification", by_row=True, **THREE),
    "modernbert texts by the mean": modern(
        "ModernBertForSequenceClassification", by_row=True, classifier_pooling="mean", **THREE
    ),
    "modernbert tokens": modern("ModernBertForTokenClassification", **THREE),
    "modernbert answers": modern("ModernBertForQuestionAnswering", SPAN),
    "modernbert, windows first": modern(
        "ModernBertModel",
        HIDDEN,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    ),
    "vit": vit("ViTModel", POOLED),
    "vit pictures": vit("ViTForImageClassification", by_row=True, **THREE),
    "vit without biases": vit("ViTForImageClassification", by_row=True, qkv_bias=False),
}


class Judge:
    """A model of transformers in float32, every tensor of it random, and what it gives."""

    def __init__(self, encoder: Encoder) -> None:
        import transformers

        self.encoder = encoder
        config = getattr(transformers, encoder.config_class)(**encoder.config)
        config._attn_implementation = "eager"
        self.model = getattr(transformers, encoder.model_class)(config).eval()
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, tensor in sorted(self.model.state_dict(keep_vars=True).items()):
                if "embed_positions" in name:
                    continue
                noise = torch.randn(tensor.shape, generator=draw)
                spread = 0.5 if "embed" in name else tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.3
                tensor.copy_(noise * spread if tensor.dim() > 1 else tensor + noise * spread)
        self.model.tie_weights()
        self.is_text = "vocab_size" in encoder.config
        if self.is_text:
            # No id of the rows is the padding's, which some models look for.
            self.main = torch.randint(5, 90, (BATCH, TOKENS), generator=draw)
        else:
            side = encoder.config["image_size"]
            self.main = torch.randn(BATCH, encoder.config["num_channels"], side, side, generator=draw)
        types = encoder.config.get("type_vocab_size", 0)
        self.types = torch.randint(0, types, (BATCH, TOKENS), generator=draw) if types else None

    @torch.no_grad()
    def forward(self, main: Tensor, **more: Any) -> list[Tensor]:
        """The outputs; scores of where an answer begins and ends are side by side, as they come out of one matrix."""
        if self.encoder.config_class == "LongformerConfig":
            # There it is an input which tokens are global: the first of each row.
            mask = more.get("attention_mask")
            first = torch.zeros(len(main), dtype=torch.int64) if mask is None else mask.argmax(1)
            more["global_attention_mask"] = torch.zeros_like(main).scatter(1, first.unsqueeze(1), 1)
        found = self.model(main, **{name: value for name, value in more.items() if value is not None})
        parts = [found[name] for name in self.encoder.outputs]
        return [torch.stack(parts, -1)] if self.encoder.outputs == SPAN else parts


@cache
def judge_of(name: str) -> Judge:
    """One a case and process."""
    return Judge(ENCODERS[name])


def saved(name: str, folder: Path) -> Path:
    """The folder that save_pretrained writes."""
    judge_of(name).model.save_pretrained(folder)
    return folder


def largest(outputs: list[Tensor]) -> float:
    """Of all outputs."""
    return max(1.0, *(float(each.abs().max()) for each in outputs)) if len(outputs) else math.nan
