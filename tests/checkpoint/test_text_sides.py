"""Text sides of models with towers, and variants of families, against transformers' own classes: logits and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file  # noqa: E402

import archc  # noqa: E402
from archc.checkpoint.convert import to_archc, to_hf  # noqa: E402
from archc.checkpoint.importing import import_config  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from tests.parity.deltanet import OLMO_HYBRID, QWEN3_5  # noqa: E402
from tests.parity.family import Family  # noqa: E402
from tests.parity.latent import DEEPSEEK_V3  # noqa: E402
from tests.parity.oracle import Oracle  # noqa: E402

pytestmark = pytest.mark.torch

TOKENS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
EXPERTS = {
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
SMALL = {"hidden_size": 16, "intermediate_size": 16}
QWEN_TOWER = {
    **SMALL,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "patch_size": 2,
}
KIMI_TOWER = {**SMALL, "num_attention_heads": 2, "num_hidden_layers": 1}
DENSE = {key: value for key, value in QWEN3_5.config.items() if key != "intermediate_size"}


def of(family: Family, name: str, config: dict[str, Any], model: str = "", config_class: str = "") -> Family:
    model_class, config_class = model or family.model_class, config_class or family.config_class
    return replace(family, name=name, config=config, model_class=model_class, config_class=config_class)


VARIANTS: dict[str, tuple[Family, tuple[str, ...]]] = {
    "qwen3_5_moe_text": (
        of(QWEN3_5, "qwen3_5_moe", {**DENSE, **EXPERTS}, "Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig"),
        (),
    ),
    "qwen3_5": (
        of(
            QWEN3_5,
            "qwen3_5_full",
            {"text_config": QWEN3_5.config, "vision_config": QWEN_TOWER, **TOKENS},
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5Config",
        ),
        ("model.visual.*",),
    ),
    "qwen3_5_moe": (
        of(
            QWEN3_5,
            "qwen3_5_moe_full",
            {"text_config": {**DENSE, **EXPERTS}, "vision_config": QWEN_TOWER, **TOKENS},
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen3_5MoeConfig",
        ),
        ("model.visual.*",),
    ),
    "kimi_k25": (
        of(
            DEEPSEEK_V3,
            "kimi_k25",
            {
                "text_config": {**DEEPSEEK_V3.config, "model_type": "kimi_k2"},
                "vision_config": KIMI_TOWER,
                "projection_hidden_size": 16,
                "tie_word_embeddings": False,
                **TOKENS,
            },
            "Kimi_K25ForConditionalGeneration",
            "Kimi_K25Config",
        ),
        ("vision_tower.*", "*mm_projector.*"),
    ),
    # The eps of the delta rule's output stays 1e-5.
    "olmo_hybrid_eps": (of(OLMO_HYBRID, "olmo_hybrid_eps", {**OLMO_HYBRID.config, "rms_norm_eps": 0.01}), ()),
    "olmo_hybrid_rope": (
        of(OLMO_HYBRID, "olmo_hybrid_rope", {k: v for k, v in OLMO_HYBRID.config.items() if k != "rope_parameters"}),
        (),
    ),
}


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Oracle, Path, tuple[str, ...]]]:
    """Name -> (its oracle, the folder that save_pretrained wrote, patterns of what is left out); made once."""

    @cache
    def get(name: str) -> tuple[Oracle, Path, tuple[str, ...]]:
        family, towers = VARIANTS[name]
        oracle, folder = Oracle(family), tmp_path_factory.mktemp(name)
        oracle.model.save_pretrained(folder)
        return oracle, folder, towers

    return get


@pytest.mark.parametrize("name", VARIANTS)
def test_the_text_model_gives_the_same_logits(variant: Callable[[str], Any], name: str, tmp_path: Path) -> None:
    oracle, folder, towers = variant(name)
    imported = import_config(folder)
    to_archc(folder, tmp_path / "out", imported, allow_unused=towers)
    model = archc.load_weights(archc.build(imported.spec, device="cpu", dtype="float32"), tmp_path / "out").eval()
    with torch.no_grad():
        assert float((model(oracle.ids) - oracle.logits).abs().max()) < oracle.family.tolerance


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_read_goes_back_bit_by_bit(variant: Callable[[str], Any], name: str, tmp_path: Path) -> None:
    _, folder, towers = variant(name)
    found = to_archc(folder, tmp_path / "out", import_config(folder), allow_unused=towers)
    to_hf(tmp_path / "out", tmp_path / "back")
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "back"))
    assert set(after) == set(before) - set(found.left_out)
    assert all(tensor.tobytes() == before[key].tobytes() for key, tensor in after.items())


@pytest.mark.parametrize("name", ["qwen3_5", "kimi_k25"])
def test_towers_are_an_error_that_says_how_to_leave_them_out(
    variant: Callable[[str], Any], name: str, tmp_path: Path
) -> None:
    _, folder, _ = variant(name)
    with pytest.raises(ArchcError, match=r"the vision tower, which archc does not build; --allow-unused '"):
        to_archc(folder, tmp_path / "out", import_config(folder))
