"""Kimi K2.5, the text side: DeepSeek-V3 under names of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.family import Checkpoint, Nested
from archc.checkpoint.rules import LeftOut, Naming
from archc_plugins.checkpoint.deepseek import DeepseekV3
from archc_plugins.checkpoint.gemma import TOWERED

_HEAD = ("lm_head.", "language_model.lm_head.")


class KimiK25(Nested):
    """The text side of Kimi_K25ForConditionalGeneration."""

    model_class: ClassVar[str] = "Kimi_K25ForConditionalGeneration"
    text: ClassVar[type[Checkpoint]] = DeepseekV3
    # The outer flag rules, and transformers' class assumes that it is true.
    defaults: ClassVar[Mapping[str, Any]] = {"tie_word_embeddings": True}
    other_namings: ClassVar[Sequence[Naming]] = (
        *TOWERED,
        # save_pretrained undoes the renaming of the vision tower's blocks in the text model, too.
        (("model.layers.", "language_model.model.blocks."), ("model.", "language_model.model."), _HEAD),
    )
    towers: ClassVar[Sequence[LeftOut]] = (
        LeftOut("vision_tower.*", "the vision tower"),
        LeftOut("mm_projector.*", "what brings images to the text model"),
        LeftOut("model.mm_projector.*", "what brings images to the text model"),
    )
    outer_no_effect: ClassVar[Mapping[str, str]] = {
        "vision_config": "of the vision tower, which is left out",
        **dict.fromkeys(
            ("projection_hidden_size", "projection_layer_norm_eps"), "of the vision tower, which is left out"
        ),
        **dict.fromkeys(
            (
                "image_token_id",
                "video_token_id",
                "vision_start_token_id",
                "vision_end_token_id",
                "media_placeholder_token_id",
                "use_unified_vision_chunk",
                "video_placeholder",
                "ignore_index",
            ),
            "of pictures among the text",
        ),
    }
