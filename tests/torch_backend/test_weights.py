"""Weights in and out of safetensors: nothing missing, nothing left over, nothing half done."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402

import archc  # noqa: E402
import archc.torch_backend.weights as weights_module  # noqa: E402
from archc.checkpoint.reading import INDEX  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from archc.torch_backend.weights import load_weights, save_weights, weights_of  # noqa: E402
from tests.torch_backend.examples import FFNS, TINY, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def model():
    return lively(small_spec(ffn=FFNS["moe sigmoid corrected"], tied=True))


def other_of(model):
    """The same architecture with other weights."""
    return archc.build(model.archc_graph, device="cpu", seed=9)


def sharded(folder, tensors, count=3):
    """A folder of shards with an index."""
    names = list(tensors)
    where = {name: f"model-{i % count:05}-of-{count:05}.safetensors" for i, name in enumerate(names)}
    for shard in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == shard}, str(folder / shard))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


@pytest.mark.parametrize("name", TINY)
def test_a_round_trip_keeps_every_weight(name, tmp_path):
    source, target = lively(name), archc.build(name, device="cpu", seed=9)
    load_weights(target, save_weights(source, tmp_path / "new folder" / "model.safetensors"))
    expected = source.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in target.state_dict().items())
    ids = ids_for(source, 1, 9)
    with torch.no_grad():
        assert torch.equal(target(ids), source(ids))


def test_a_file_holds_the_names_of_the_graph_and_each_tied_weight_once(model, tmp_path):
    file = save_weights(model, tmp_path / "model.safetensors")
    tensors = load_file(file)
    assert tensors.keys() == model.archc_graph.params().keys()
    assert "lm_head.weight" not in tensors
    assert any(name.endswith("e_score_correction_bias") for name in tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_folder_of_shards_loads_and_so_does_a_folder_with_one_file(model, tmp_path):
    expected = model.state_dict()
    whole = tmp_path / "whole"
    save_weights(model, whole / "model.safetensors")
    shards = tmp_path / "shards"
    shards.mkdir()
    sharded(shards, {name: t.detach().clone() for name, t in weights_of(model).items()})
    for folder in (whole, shards):
        target = load_weights(other_of(model), folder)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in target.state_dict().items())


def test_progress_counts_every_weight_once(model, tmp_path):
    seen = []
    file = save_weights(model, tmp_path / "model.safetensors")
    load_weights(other_of(model), file, progress=lambda *news: seen.append(news))
    names = list(model.archc_graph.params())
    assert seen == [(name, number, len(names)) for number, name in enumerate(names, 1)]


def test_tensors_are_converted_to_the_dtype_of_the_weight(model, tmp_path):
    file = save_weights(model, tmp_path / "model.safetensors")
    target = load_weights(archc.build(model.archc_graph, device="cpu", dtype="bfloat16"), file)
    assert torch.equal(target.norm.weight, model.norm.weight.bfloat16())
    bias = "layers.0.ffn.router.e_score_correction_bias"
    assert torch.equal(target.state_dict()[bias], model.state_dict()[bias])


def test_every_name_that_does_not_fit_is_listed_and_nothing_changes(model, tmp_path):
    tensors = {name: t.detach().clone() for name, t in weights_of(model).items()}
    del tensors["norm.weight"], tensors["layers.1.mixer.q_proj.weight"]
    tensors["lm_head.weight"] = torch.zeros(2)
    tensors["layers.0.mixer.k_proj.weight"] = torch.zeros(3, 3)
    save_file(tensors, str(tmp_path / "bad.safetensors"))
    target = other_of(model)
    before = {name: t.clone() for name, t in target.state_dict().items()}
    with pytest.raises(ArchcError) as caught:
        load_weights(target, tmp_path / "bad.safetensors")
    message = str(caught.value)
    assert "4 weights don't fit" in message
    for line in (
        "norm.weight is missing",
        "layers.1.mixer.q_proj.weight is missing",
        "lm_head.weight is no weight of small",
        "layers.0.mixer.k_proj.weight is [3, 3], the model's is [32, 32]",
    ):
        assert line in message
    assert all(torch.equal(t, before[name]) for name, t in target.state_dict().items())


def test_a_model_on_meta_asks_to_be_materialised(model, tmp_path):
    file = save_weights(model, tmp_path / "model.safetensors")
    with pytest.raises(ArchcError, match=r"norm\.weight is on the meta device: materialise the model first"):
        load_weights(archc.build(model.archc_graph), file)


@pytest.mark.parametrize("content", [b"", b"not a safetensors file", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0{}"], ids=repr)
def test_a_corrupt_file_is_refused_by_name(model, tmp_path, content):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ArchcError, match=r"model\.safetensors can't be read as safetensors"):
        load_weights(model, file)


def test_a_truncated_file_is_refused_and_nothing_changes(model, tmp_path):
    file = save_weights(model, tmp_path / "model.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    target = other_of(model)
    before = {name: t.clone() for name, t in target.state_dict().items()}
    with pytest.raises(ArchcError, match="can't be read as safetensors"):
        load_weights(target, file)
    assert all(torch.equal(t, before[name]) for name, t in target.state_dict().items())


def test_a_file_that_is_not_there_is_refused_by_name(model, tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(ArchcError) as caught:
            load_weights(model, path)
        assert str(caught.value) == (
            f"{path} is neither a safetensors file nor a folder with model.safetensors or its index"
        )


@pytest.mark.parametrize(
    "index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": {}}}', '{"weight_map": {"a": 3}}', "\ufffd"]
)
def test_an_index_that_is_none_is_refused(model, tmp_path, index):
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(ArchcError, match=r"index\.json"):
        load_weights(model, tmp_path)


@pytest.mark.parametrize("shard", ["../stolen.safetensors", "/etc/passwd", "a/../../b", "..", ""], ids=repr)
def test_an_index_may_not_point_outside_its_folder(model, tmp_path, shard):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"norm.weight": shard}}))
    with pytest.raises(ArchcError, match="names files outside its folder"):
        load_weights(model, tmp_path)


def test_a_weight_in_two_shards_is_refused(model, tmp_path):
    tensors = {name: t.detach().clone() for name, t in weights_of(model).items()}
    save_file(tensors, str(tmp_path / "a.safetensors"))
    save_file({"norm.weight": torch.zeros(32)}, str(tmp_path / "b.safetensors"))
    where = {**dict.fromkeys(tensors, "a.safetensors"), "extra": "b.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    with pytest.raises(ArchcError, match=r"norm\.weight is in more than one file"):
        load_weights(model, tmp_path)


def test_a_write_that_is_interrupted_leaves_the_old_file(model, tmp_path, monkeypatch):
    file = save_weights(model, tmp_path / "model.safetensors")
    before = file.read_bytes()

    def half(tensors, path, metadata=None):
        with open(path, "wb") as partial:
            partial.write(before[:50])
        raise KeyboardInterrupt

    monkeypatch.setattr(weights_module, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        save_weights(other_of(model), file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
