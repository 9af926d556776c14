"""BigBird: BERT between whose blocks of tokens few meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import activation
from archc.checkpoint.config import Config
from archc.checkpoint.rules import Dropped, LeftOut, Rule, both
from archc_plugins.checkpoint.bert import Bert
from archc_plugins.checkpoint.encoders import (
    MASKED,
    POOLED,
    TEXT_CLASS,
    TOKEN_CLASS,
    bert_predictions,
    form_of,
    pooled_class,
)

SPARSE, FULL = "block_sparse", "original_full"


class BigBird(Bert):
    """BigBirdModel, and BigBirdFor…; its plan of random blocks is drawn in training only, so none is drawn here."""

    model_class: ClassVar[str] = "BigBirdModel"
    forms: ClassVar[Mapping[str, str]] = {
        "BigBirdModel": POOLED,
        "BigBirdForMaskedLM": MASKED,
        "BigBirdForPreTraining": MASKED,
        "BigBirdForSequenceClassification": TEXT_CLASS,
        "BigBirdForTokenClassification": TOKEN_CLASS,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **Bert.defaults,
        "vocab_size": 50358,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 66,
        "attention_type": SPARSE,
        "use_bias": True,
        "rescale_embeddings": False,
        "block_size": 64,
        "num_random_blocks": 3,
    }

    def spec(self, config: Config) -> dict[str, Any]:
        config.ignore("sep_token_id", why="of question answering")
        body = super().spec(config)
        if config.take("rescale_embeddings"):
            body["embedding"]["scale"] = "sqrt(hidden_size)"
        biases = {} if config.take("use_bias") else {"qkv_bias": False}
        mixer: dict[str, Any] = {**body["mixers"]["attn"], **biases}
        form = config.take("attention_type")
        if form == SPARSE:
            plain = {key: value for key, value in mixer.items() if key not in ("kind", "num_kv_heads")}
            few = config.take("num_random_blocks")
            blocks = {"block_size": config.take("block_size"), **({"num_random_blocks": few} if few else {})}
            mixer = {"kind": "local_global", **plain, **blocks}
        else:
            config.expect("attention_type", FULL, why="is no attention that is known")
            config.ignore("block_size", "num_random_blocks", why="of block-sparse attention")
        body["mixers"]["attn"] = mixer
        return body

    def head(self, config: Config, found: str) -> Any:
        if found == TEXT_CLASS:
            return pooled_class(config, found, act=activation(config, "hidden_act"))
        return super().head(config, found)

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        return (LeftOut("cls.seq_relationship.*", "the head of next sentences"),)

    def drops(self, config: Mapping[str, Any]) -> Sequence[Dropped]:
        pooler = Dropped(r"(bert\.)?pooler\.(weight|bias)", "the class has a pooler and does not read it", kept=True)
        is_read = form_of(config, self.forms) == POOLED
        return (
            *super().drops(config),
            Dropped(r"(bert\.)?embeddings\.token_type_ids", "zeros"),
            *(() if is_read else (pooler,)),
        )

    def head_rules(self, found: str, *, tied: bool) -> tuple[Rule, ...]:
        if found == MASKED:
            return bert_predictions("cls.predictions", tied=tied)
        if found == POOLED:
            return both("bert.pooler", "pooler")
        if found == TEXT_CLASS:
            return (*both("classifier.dense", "head_dense"), *both("classifier.out_proj", "classifier"))
        return both("classifier", "classifier")
