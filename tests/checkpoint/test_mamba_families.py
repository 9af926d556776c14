"""Mamba-2, Granite 4 and Nemotron-H: their spellings and layouts, and what they ask for in vain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from archc.checkpoint.convert import to_archc, to_hf  # noqa: E402
from archc.checkpoint.importing import import_config, import_data  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from archc.estimation.estimate import estimate  # noqa: E402
from archc.graph.lockfile import to_text  # noqa: E402
from tests.parity.mamba import GRANITEMOEHYBRID, GRANITEMOEHYBRID_DENSE, MAMBA2, NEMOTRON_H  # noqa: E402

pytestmark = pytest.mark.torch

MAMBA = {"model_type": "mamba2", **MAMBA2.config}
NEMOTRON = {"model_type": "nemotron_h", **NEMOTRON_H.config}
GRANITE = {"model_type": "granitemoehybrid", **GRANITEMOEHYBRID.config}
ROTATED = {"model_type": "granitemoehybrid", **GRANITEMOEHYBRID_DENSE.config}


def graph(data: dict[str, Any]) -> str:
    return to_text(import_data(data, name="tiny").graph)


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


OLDER = {
    "layers by letters": (without(NEMOTRON, "layers_block_type"), {"hybrid_override_pattern": "M-*EME"}),
    "layers under another key, and a count that the list says too": (
        without(NEMOTRON, "layers_block_type"),
        {"layer_types": ["mamba", "mlp", "attention", "moe", "mamba", "moe"], "num_hidden_layers": 6},
    ),
    "the mixer's keys with its name before them": (
        without(NEMOTRON, "n_groups"),
        {"mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_conv_bias": True, "mamba_dt_min": 0.001, "mamba_chunk_size": 8},
    ),
    "keys that the class never reads": (
        NEMOTRON,
        {
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mamba_proj_bias": True,
            "expand": 7,
            "n_shared_experts": 3,
            "sliding_window": 5,
            "time_step_limit": [0.1, 0.2],
            "num_nextn_predict_layers": 1,
            "rms_norm_eps": 1e-3,
            "num_query_groups": 2,
            "rope_theta": 10000,
            "time_step_rank": 256,
        },
    ),
    "Granite's layers under another key": (
        without(GRANITE, "layer_types"),
        {"layers_block_type": ["mamba", "mamba", "attention", "mamba"]},
    ),
    "a width of heads that follows": (without(GRANITE, "mamba_d_head"), {"mamba_d_head": "auto"}),
    "Granite's rotation in the older spelling": (without(ROTATED, "rope_parameters"), {"rope_theta": 10000.0}),
    "a rotation that nothing asks for": (
        GRANITE,
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    "keys of Codestral's file": (
        MAMBA,
        {
            "intermediate_size": 128,
            "norm_before_gate": True,
            "rms_norm": True,
            "time_step_scale": 1.0,
            "time_step_init_scheme": "random",
        },
    ),
    "limits that limit nothing": (MAMBA, {"time_step_limit": [0.0, {"__float__": "Infinity"}]}),
}


@pytest.mark.parametrize(("kept", "more"), OLDER.values(), ids=OLDER)
def test_another_spelling_is_the_same_model(kept: dict[str, Any], more: dict[str, Any]) -> None:
    granite = ROTATED if kept.get("position_embedding_type") == "rope" else GRANITE
    whole = {"nemotron_h": NEMOTRON, "mamba2": MAMBA, "granitemoehybrid": granite}[kept["model_type"]]
    assert graph({**kept, **more}) == graph(whole)


OTHER = {
    "a limit": (MAMBA, {"time_step_limit": [0.01, 0.1]}),
    "a lowest step alone": (MAMBA, {"time_step_limit": [0.01, {"__float__": "Infinity"}]}),
    "a limit of Granite's": (GRANITE, {"time_step_limit": [0.01, 0.1]}),
    "biases of Nemotron's mixers": (NEMOTRON, {"use_bias": False}),
    "a floor of steps above the usual": (NEMOTRON, {"time_step_min": 0.01}),
    "experts in a narrower width": (NEMOTRON, {"moe_latent_size": 32}),
    "no rotation": (ROTATED, {"position_embedding_type": None}),
    "a rotation": (GRANITE, {"position_embedding_type": "rope"}),
}


@pytest.mark.parametrize(("whole", "more"), OTHER.values(), ids=OTHER)
def test_what_changes_the_model_changes_the_graph(whole: dict[str, Any], more: dict[str, Any]) -> None:
    assert graph({**whole, **more}) != graph(whole)


REFUSED = {
    "a width that is not that of the heads": (MAMBA, {"expand": 3}, "expand: 3"),
    "another width": (MAMBA, {"intermediate_size": 64}, "intermediate_size: 64"),
    "no norm": (MAMBA, {"rms_norm": False}, "rms_norm: False"),
    "another activation": (MAMBA, {"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
    "another activation in a mixer": (NEMOTRON, {"mamba_hidden_act": "relu"}, "mamba_hidden_act: 'relu'"),
    "biases around experts": (NEMOTRON, {"mlp_bias": True}, "mlp_bias: True"),
    "a type of layer that nobody knows": (NEMOTRON, {"layers_block_type": ["mamba3"]}, "layers_block_type"),
    "letters that nobody knows": (
        without(NEMOTRON, "layers_block_type"),
        {"hybrid_override_pattern": "MX"},
        "hybrid_override_pattern",
    ),
    "too few types": (GRANITE, {"num_hidden_layers": 5}, "layer_types"),
    "heads that don't fill the width": (GRANITE, {"mamba_d_head": 8}, "mamba_d_head: 8"),
    "another activation of Granite's": (GRANITE, {"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
}


@pytest.mark.parametrize(("whole", "more", "named"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(whole: dict[str, Any], more: dict[str, Any], named: str) -> None:
    with pytest.raises(ArchcError) as caught:
        import_data({**whole, **more}, name="tiny")
    assert named in str(caught.value)


def test_a_nemotron_without_some_kinds_of_layers_ignores_their_keys() -> None:
    found = import_data({**NEMOTRON, "layers_block_type": ["linear_attention", "mlp"]}, name="tiny")
    assert "layers: mamba mlp" in found.text
    assert "moe" not in found.text
    assert "attn" not in found.text


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As transformers computes with: all experts in one tensor, and another first word."""
    found = {name: tensor for name, tensor in tensors.items() if ".mixer.experts." not in name}
    for layer in (3, 5):
        for part in ("up_proj", "down_proj"):
            names = [f"backbone.layers.{layer}.mixer.experts.{expert}.{part}.weight" for expert in range(8)]
            found[f"backbone.layers.{layer}.mixer.experts.{part}"] = np.stack([tensors[name] for name in names])
    return found


def renamed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.replace("backbone.", "model.", 1): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("change", [renamed, stacked, lambda x: renamed(stacked(x))], ids=["model.", "stacked", "both"])
@pytest.mark.parametrize("name", ["nemotron_h", "nemotron_h_latent"])
def test_nemotrons_weights_out_of_another_layout(
    saved: Callable[..., Any], name: str, change: Callable[..., Any], tmp_path: Path
) -> None:
    _, folder = saved(name)
    before = load_file(folder / "model.safetensors")
    assert "backbone.layers.3.mixer.experts.0.up_proj.weight" in before
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(change(before), other / "model.safetensors")
    imported = import_config(folder)
    to_archc(folder, tmp_path / "out", imported)
    to_archc(other, tmp_path / "too", imported)
    for one, two in ((tmp_path / "out", tmp_path / "too"), (other, tmp_path / "back")):
        if two.name == "back":
            to_hf(tmp_path / "too", two)
        here, there = (load_file(place / "model.safetensors") for place in (one, two))
        assert {key: x.shape for key, x in here.items()} == {key: x.shape for key, x in there.items()}
        assert all(x.tobytes() == there[key].tobytes() for key, x in here.items())


def test_fifty_two_half_layers_at_full_size_have_as_many_parameters_as_transformers_builds() -> None:
    transformers = pytest.importorskip("transformers")
    # Widths and layers of Nemotron-H 8B, in the older spelling.
    data = {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "num_hidden_layers": 52,
        "attention_head_dim": 128,
        "max_position_embeddings": 8192,
        "time_step_rank": 256,
    }
    imported = import_data(data, name="half-layers")
    assert "layers: (mamba mlp)*3 mamba (attn (mlp mamba)*5)* mlp\n" in imported.text
    with torch.device("meta"):
        model = transformers.NemotronHForCausalLM(transformers.NemotronHConfig(**data))
    assert estimate(imported.graph).parameters.total == sum(weight.numel() for weight in model.parameters())
