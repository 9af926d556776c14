"""Longformer: RoBERTa whose tokens see windows, and whose first token sees, and is seen by, all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from archc.checkpoint.config import Config
from archc.checkpoint.rules import Rule, both
from archc_plugins.checkpoint.bert import Roberta
from archc_plugins.checkpoint.encoders import MASKED, POOLED, TEXT_CLASS


class Longformer(Roberta):
    """LongformerModel, and LongformerFor…. Which tokens are global is an input there; here it is the first one, always.

    Classes that make other tokens global themselves (a question's, in front of its text) are refused.
    """

    model_class: ClassVar[str] = "LongformerModel"
    base: ClassVar[str] = "longformer"
    forms: ClassVar[Mapping[str, str]] = {
        "LongformerModel": POOLED,
        "LongformerForMaskedLM": MASKED,
        "LongformerForSequenceClassification": TEXT_CLASS,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **Roberta.defaults,
        "vocab_size": 30522,
        "attention_window": 512,
        "sep_token_id": 2,
    }
    optional_prefix: ClassVar[str] = "longformer."

    def spec(self, config: Config) -> dict[str, Any]:
        config.ignore("onnx_export", "sep_token_id", why="the model class never reads it")
        body = super().spec(config)
        layers = body["encoder"]["num_layers"]
        stated = config.take("attention_window")
        windows: list[int] = [stated] * layers if isinstance(stated, int) else list(stated)
        if len(windows) != layers:
            config.refuse("attention_window", f"should be one number, or one for each of the {layers} layers")
            windows = [512] * layers
        plain = {key: value for key, value in body["mixers"]["attn"].items() if key not in ("kind", "num_kv_heads")}
        kinds = list(dict.fromkeys(windows))
        names = {window: "attn" if len(kinds) == 1 else f"local_{window}" for window in kinds}
        body["mixers"] = {
            names[window]: {
                "kind": "local_global",
                **plain,
                "attention_window": window,
                "global_projections": True,
            }
            for window in kinds
        }
        body["encoder"]["mixer"] = "attn" if len(kinds) == 1 else " ".join(names[window] for window in windows)
        return body

    def body(self) -> tuple[Rule, ...]:
        inner = f"{self.base}.encoder.layer.{{i}}.attention.self"
        ours = "layers.{i}.mixer"
        globals_ = (
            ("query_global", "global_q_proj"),
            ("key_global", "global_k_proj"),
            ("value_global", "global_v_proj"),
        )
        return (
            *super().body(),
            *(entry for theirs, name in globals_ for entry in both(f"{inner}.{theirs}", f"{ours}.{name}")),
        )
