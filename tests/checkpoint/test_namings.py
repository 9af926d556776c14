"""Files as they were published: other beginnings of names, buffers beside the weights, tied heads that are stored too."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from archc.checkpoint.convert import to_archc, to_hf  # noqa: E402
from archc.checkpoint.opening import import_folder  # noqa: E402
from archc.errors import ArchcError  # noqa: E402

pytestmark = pytest.mark.torch

Tensors = dict[str, np.ndarray]


def without(prefix: str, tensors: Tensors) -> Tensors:
    assert any(name.startswith(prefix) for name in tensors)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def gpt2(tensors: Tensors) -> Tensors:
    mask = np.tril(np.ones((1, 1, 48, 48), np.float32))
    return {**without("transformer.", tensors), **{f"h.{layer}.attn.bias": mask for layer in range(3)}}


def gpt_neox(tensors: Tensors) -> Tensors:
    layers = [f"gpt_neox.layers.{layer}.attention" for layer in range(3)]
    return {
        **tensors,
        **{f"{layer}.bias": np.tril(np.ones((1, 1, 8, 8), bool)) for layer in layers},
        **{f"{layer}.masked_bias": np.array(-1e9, np.float32) for layer in layers},
        **{f"{layer}.rotary_emb.inv_freq": np.ones(2, np.float32) for layer in layers},
    }


def falcon(tensors: Tensors) -> Tensors:
    return {**tensors, "lm_head.weight": tensors["transformer.word_embeddings.weight"].copy()}


def old_llama(tensors: Tensors) -> Tensors:
    buffers = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": np.ones(12, np.float32) for layer in range(3)}
    return {**tensors, **buffers}


PUBLISHED: dict[str, Callable[[Tensors], Tensors]] = {
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "bloom": lambda tensors: without("transformer.", tensors),
    "falcon": falcon,
    "opt": lambda tensors: without("model.", tensors),
    "opt_prenorm": lambda tensors: {**tensors, "lm_head.weight": tensors["model.decoder.embed_tokens.weight"].copy()},
    "llama": old_llama,
}


def folder_of(saved: Path, out: Path, change: Callable[[Tensors], Tensors]) -> Path:
    out.mkdir()
    shutil.copyfile(saved / "config.json", out / "config.json")
    save_file(change(load_file(saved / "model.safetensors")), out / "model.safetensors", {"format": "pt"})
    return out


BUFFERS = re.compile(r"\.(attn|attention)\.(masked_)?bias$|\.inv_freq$")
"""What older files hold, and no version of transformers reads: they don't come back."""


def same(first: Path, second: Path) -> None:
    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    one = {name: tensor for name, tensor in one.items() if not BUFFERS.search(name)}
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape), name
        assert tensor.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_layout_gives_the_same_weights_and_comes_back(
    saved: Callable[..., Any], name: str, tmp_path: Path
) -> None:
    _, folder = saved(name)
    published = folder_of(folder, tmp_path / "published", PUBLISHED[name])
    to_archc(folder, tmp_path / "known", import_folder(folder))
    to_archc(published, tmp_path / "here", import_folder(published))
    same(tmp_path / "known", tmp_path / "here")
    to_hf(tmp_path / "here", tmp_path / "back")
    same(published, tmp_path / "back")


def test_a_head_that_differs_from_the_embedding_is_not_tied(saved: Callable[..., Any], tmp_path: Path) -> None:
    _, folder = saved("falcon")
    head = "lm_head.weight"
    other = folder_of(folder, tmp_path / "other", lambda tensors: {**falcon(tensors), head: falcon(tensors)[head] * 2})
    imported = import_folder(other)
    assert "tie_word_embeddings: false" in imported.text
    to_archc(other, tmp_path / "here", imported)
    here = load_file(tmp_path / "here" / "model.safetensors")
    assert (here[head] == 2 * here["embed_tokens.weight"]).all()
    to_hf(tmp_path / "here", tmp_path / "back")
    same(other, tmp_path / "back")


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory, saved: Callable[..., Any]) -> tuple[Path, Any]:
    """A whole tiny Gemma 3 whose text model is the oracle's, as save_pretrained writes it, and the model."""
    import transformers

    oracle, _ = saved("gemma3_text")
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(
        text_config=oracle.family.config, vision_config=vision, mm_tokens_per_image=4, dtype="float32"
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.model.language_model.load_state_dict(oracle.model.model.state_dict())
    folder = tmp_path_factory.mktemp("towers")
    model.save_pretrained(folder)
    return folder, model


@pytest.mark.parametrize("form", ["published", "as it runs"])
def test_the_text_side_of_several_towers(
    towers: tuple[Path, Any], saved: Callable[..., Any], tmp_path: Path, form: str
) -> None:
    folder, model = towers
    if form == "as it runs":
        state = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        folder = folder_of(folder, tmp_path / "runs", lambda _: state)
    _, text = saved("gemma3_text")
    imported = import_folder(folder, name="text")
    assert imported.text == import_folder(text, name="text").text
    with pytest.raises(ArchcError, match="--allow-unused"):
        to_archc(folder, tmp_path / "here", imported)
    prefix = "model." if form == "as it runs" else ""
    unused = [f"{prefix}vision_tower.*", f"{prefix}multi_modal_projector.*"]
    done = to_archc(folder, tmp_path / "here", imported, allow_unused=unused)
    assert all(re.match(rf"{prefix}(vision_tower|multi_modal_projector)\.", name) for name in done.left_out)
    to_archc(text, tmp_path / "known", import_folder(text))
    same(tmp_path / "known", tmp_path / "here")
    to_hf(tmp_path / "here", tmp_path / "back")
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "back"))
    assert set(after) == set(before) - set(done.left_out)
    assert all(tensor.tobytes() == before[name].tobytes() for name, tensor in after.items())
    configs = [json.loads((place / "config.json").read_text("utf-8")) for place in (folder, tmp_path / "back")]
    assert configs[0] == configs[1]
