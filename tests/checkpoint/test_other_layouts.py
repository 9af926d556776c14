"""Files that hold the same tensors otherwise: as published, as transformers saves them, experts stacked, quantised."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402
from safetensors.torch import save_file as save_torch  # noqa: E402

import archc  # noqa: E402
from archc.checkpoint.convert import to_archc, to_hf  # noqa: E402
from archc.checkpoint.importing import import_config  # noqa: E402
from archc.errors import ArchcError  # noqa: E402

pytestmark = pytest.mark.torch

Tensors = dict[str, np.ndarray]
DENSE = re.compile(r"(model\.layers\.0\.)block_sparse_moe(\.(?:gate|up|down)_proj\.weight)")


def stacked(tensors: Tensors) -> Tensors:
    """As transformers computes: one tensor for the gates and ups of all experts, one for the downs."""
    names = (("gate_proj", "up_proj"), ("down_proj",))
    if any(name.endswith(".w1.weight") for name in tensors):
        names = (("w1", "w3"), ("w2",))
    found = {
        name.replace("block_sparse_moe", "mlp"): tensor
        for name, tensor in tensors.items()
        if not re.search(r"experts\.\d+\.", name)
    }
    for module in sorted(
        {match[1] for match in (re.match(r"(.*\.experts)\.\d+\.", name) for name in tensors) if match}
    ):
        count = len(
            {name.removeprefix(f"{module}.").split(".")[0] for name in tensors if name.startswith(f"{module}.")}
        )
        for parts, joined in zip(names, ("gate_up_proj", "down_proj"), strict=True):
            experts = [
                np.concatenate([tensors[f"{module}.{expert}.{part}.weight"] for part in parts])
                for expert in range(count)
            ]
            found[f"{module.replace('block_sparse_moe', 'mlp')}.{joined}"] = np.stack(experts)
    return found


def kimi_linear(tensors: Tensors) -> Tensors:
    """Published files call the dense layer's feed-forward mlp."""
    found = {DENSE.sub(r"\1mlp\2", name): tensor for name, tensor in tensors.items()}
    assert set(found) != set(tensors)
    return found


def olmo_hybrid(tensors: Tensors) -> Tensors:
    """Published files cut the convolution where queries, keys and values begin, and name the attention layer's norm so."""
    attention = "model.layers.2."
    found = {
        name.replace(f"{attention}feedforward_layer_norm", f"{attention}post_attention_layernorm"): tensor
        for name, tensor in tensors.items()
    }
    for layer in (0, 1, 3):
        names = [f"model.layers.{layer}.linear_attn.{n}_conv1d.weight" for n in "qkv"]
        whole = np.concatenate([tensors[name] for name in names])
        found |= zip(names, np.split(whole, (24, 48)), strict=True)
    return found


def rewritten(folder: Path, tmp_path: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """The folder with other tensors."""
    place = tmp_path / "published"
    place.mkdir()
    shutil.copyfile(folder / "config.json", place / "config.json")
    save_file(change(load_file(folder / "model.safetensors")), place / "model.safetensors")
    return place


def same(one: Path, other: Path) -> None:
    before, after = (load_file(place / "model.safetensors") for place in (one, other))
    assert {name: tensor.shape for name, tensor in before.items()} == {n: t.shape for n, t in after.items()}
    assert all(tensor.tobytes() == after[name].tobytes() for name, tensor in before.items())


STACKED = (
    "mixtral",
    "minimax_m2",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe",
    "kimi_linear",
    "qwen3_next",
    "minimax",
    "jamba",
)


@pytest.mark.parametrize(
    ("name", "change"),
    [*((name, stacked) for name in STACKED), ("kimi_linear", kimi_linear), ("olmo_hybrid", olmo_hybrid)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_the_same_weights_out_of_another_layout(
    saved: Callable[..., Any], name: str, change: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    _, folder = saved(name)
    if change is stacked and name == "kimi_linear":
        folder = rewritten(folder, tmp_path, kimi_linear)
        tmp_path = tmp_path / "stacked"
        tmp_path.mkdir()
    other = rewritten(folder, tmp_path, change)
    imported = import_config(folder)
    to_archc(folder, tmp_path / "out", imported)
    to_archc(other, tmp_path / "too", imported)
    same(tmp_path / "out", tmp_path / "too")
    to_hf(tmp_path / "too", tmp_path / "back")
    same(other, tmp_path / "back")
    # And straight into a model, without a conversion.
    model = archc.build(imported.spec, device="cpu", dtype="float32")
    loaded = archc.load_weights(model, other).state_dict()
    for key, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        assert np.array_equal(loaded[key].numpy(), tensor), key


@pytest.mark.parametrize(
    ("name", "tensors", "pattern"),
    [
        ("deepseek_v3", ("model.layers.3.eh_proj.weight", "model.layers.3.mlp.gate.weight"), "model.layers.3.*"),
        ("glm4_moe", ("model.layers.3.enorm.weight", "model.layers.3.shared_head.norm.weight"), "model.layers.3.*"),
        ("qwen3_next", ("mtp.fc.weight", "mtp.layers.0.input_layernorm.weight"), "mtp.*"),
        ("qwen3_5", ("mtp.fc.weight", "mtp.norm.weight"), "mtp.*"),
    ],
)
def test_layers_that_predict_further_tokens_are_left_out_when_asked(
    saved: Callable[..., Any], name: str, tensors: tuple[str, ...], pattern: str, tmp_path: Path
) -> None:
    _, folder = saved(name)
    more = {key: np.ones((4, 4), np.float32) for key in tensors}
    other = rewritten(folder, tmp_path, lambda known: {**known, **more})
    imported = import_config(folder)
    with pytest.raises(ArchcError, match=re.escape(f"--allow-unused '{pattern}'")):
        to_archc(other, tmp_path / "out", imported)
    assert not (tmp_path / "out").exists()
    found = to_archc(other, tmp_path / "out", imported, allow_unused=(pattern,))
    assert set(found.left_out) == set(tensors)


def test_mxfp4_is_refused_with_what_to_do(saved: Callable[..., Any], tmp_path: Path) -> None:
    _, folder = saved("gpt_oss")
    module = "model.layers.0.mlp.experts.gate_up_proj"

    def published(tensors: Tensors) -> Tensors:
        del tensors[module]
        blocks = {f"{module}_blocks": (6, 64, 2, 16), f"{module}_scales": (6, 64, 2)}
        return {**tensors, **{name: np.zeros(shape, np.uint8) for name, shape in blocks.items()}}

    other = rewritten(folder, tmp_path, published)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    quantised = {**config, "quantization_config": {"quant_method": "mxfp4"}}
    (other / "config.json").write_text(json.dumps(quantised), "utf-8")
    with pytest.raises(ArchcError) as caught:
        to_archc(other, tmp_path / "out", import_config(other))
    assert f"{module} [6, 64, 64] is missing" in str(caught.value)
    assert "is quantised (mxfp4); dequantise it first" in str(caught.value)
    assert "Mxfp4Config(dequantize=True)" in str(caught.value)


def test_fp8_is_refused_with_what_to_do(saved: Callable[..., Any], tmp_path: Path) -> None:
    _, folder = saved("deepseek_v3")
    name = "model.layers.0.mlp.down_proj.weight"
    tensors = {key: torch.from_numpy(value) for key, value in load_file(folder / "model.safetensors").items()}
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    tensors[f"{name}_scale_inv"] = torch.ones(1, 1)
    other = tmp_path / "published"
    other.mkdir()
    shutil.copyfile(folder / "config.json", other / "config.json")
    save_torch(tensors, other / "model.safetensors")
    with pytest.raises(ArchcError) as caught:
        to_archc(other, tmp_path / "out", import_config(other))
    assert f"{name} is F8_E4M3; weights should be F64, F32, F16, BF16" in str(caught.value)
    assert f"{name}_scale_inv [1, 1] belongs to no weight" in str(caught.value)
    assert "is quantised; dequantise it first" in str(caught.value)
