"""Granite (dense): Llama with factors on the embedding, the scores, the branches and the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from archc.checkpoint.config import Config
from archc_plugins.checkpoint.llama import Llama


class Granite(Llama):
    """GraniteForCausalLM."""

    model_class: ClassVar[str] = "GraniteForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
    }

    def attention(self, config: Config) -> dict[str, Any]:
        return {**super().attention(config), "softmax_scale": config.take("attention_multiplier")}

    def embedding(self, config: Config) -> dict[str, Any]:
        factor = config.take("embedding_multiplier")
        return {} if factor == 1 else {"scale": factor}

    def block(self, config: Config) -> Any:
        factor = config.take("residual_multiplier")
        return "pre_norm" if factor == 1 else {"kind": "pre_norm", "residual_multiplier": factor}

    def head(self, config: Config) -> dict[str, Any]:
        divisor = config.take("logits_scaling")
        return {} if divisor == 1 else {"head": {"kind": "lm", "logit_scale": f"1/{plain(divisor)}"}}


def plain(number: float) -> str:
    """A number as a scale writes it: whole ones without a point."""
    return str(int(number)) if number == int(number) else repr(number)
