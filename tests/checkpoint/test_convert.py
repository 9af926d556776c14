"""Tensors in and out: which are needed, which may be left out, where they go, and what is there when something fails."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

import archc  # noqa: E402
from archc.checkpoint.convert import to_archc, to_hf  # noqa: E402
from archc.checkpoint.importing import import_config  # noqa: E402
from archc.checkpoint.opening import import_folder  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from tests.checkpoint.conftest import changed_tensors, same_bits  # noqa: E402
from tests.checkpoint.test_families import NAMES  # noqa: E402

pytestmark = pytest.mark.torch

Saved = Callable[..., Any]
WEIGHTS = "model.safetensors"


def build_from(folder: Path, weights: Path) -> Any:
    return archc.load_weights(archc.build(import_folder(folder).spec, device="cpu", dtype="float32"), weights).eval()


@pytest.mark.parametrize("name", NAMES)
def test_load_weights_reads_a_published_folder_as_convert_does(saved: Saved, name: str, tmp_path: Path):
    _, folder = saved(name)
    to_archc(folder, tmp_path / "out", import_folder(folder))
    straight, converted = build_from(folder, folder), build_from(folder, tmp_path / "out")
    state = converted.state_dict()
    assert state
    assert all(torch.equal(tensor, state[key]) for key, tensor in straight.state_dict().items())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_every_dtype_of_weights_keeps_its_bits(saved: Saved, dtype: str, tmp_path: Path):
    _, folder = saved("phi3")
    other = changed_tensors(
        folder, tmp_path / "in", lambda tensors: {k: v.to(getattr(torch, dtype)) for k, v in tensors.items()}
    )
    to_archc(other, tmp_path / "out", import_folder(other))
    to_hf(tmp_path / "out", tmp_path / "back")
    assert same_bits(other, tmp_path / "back")
    filled = archc.load_weights(archc.build(import_folder(other).spec, device="cpu", dtype=dtype), other)
    known = load_file(other / WEIGHTS)["model.embed_tokens.weight"]
    assert torch.equal(filled.state_dict()["embed_tokens.weight"], known)


def test_shards_in_and_shards_out_hold_the_same_bits(saved: Saved, tmp_path: Path):
    oracle, folder = saved("qwen3_moe")
    sharded = tmp_path / "sharded"
    oracle.model.save_pretrained(sharded, max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    done = to_archc(sharded, tmp_path / "out", import_folder(sharded), shard_bytes=70_000)
    assert sum(name.endswith(".safetensors") for name in done.files) > 2
    to_hf(tmp_path / "out", tmp_path / "back", shard_bytes=70_000)
    assert same_bits(folder, sharded)
    assert same_bits(folder, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )


def test_what_goes_back_is_read_by_transformers(saved: Saved, tmp_path: Path):
    import transformers

    oracle, folder = saved("llama_full")
    to_archc(folder, tmp_path / "out", import_folder(folder))
    to_hf(tmp_path / "out", tmp_path / "back")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        assert torch.equal(model(oracle.ids).logits, oracle.logits)


def test_a_tied_head_that_is_stored_again_is_tied_and_comes_back(saved: Saved, tmp_path: Path):
    _, folder = saved("llama_full")
    twice = changed_tensors(
        folder,
        tmp_path / "in",
        lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
    )
    imported = import_folder(twice)
    assert "lm_head.weight" not in imported.graph.params()
    assert any("repeats model.embed_tokens.weight" in account.note for account in imported.accounts)
    to_archc(twice, tmp_path / "out", imported)
    to_hf(tmp_path / "out", tmp_path / "back")
    assert same_bits(twice, tmp_path / "back")


def test_a_tied_flag_that_the_tensors_deny_is_read_as_transformers_reads_it(saved: Saved, tmp_path: Path):
    import transformers

    oracle, folder = saved("llama_full")
    draw = torch.Generator().manual_seed(3)
    other = changed_tensors(
        folder, tmp_path / "in", lambda tensors: {**tensors, "lm_head.weight": torch.randn(96, 64, generator=draw)}
    )
    judge = transformers.AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32).eval()
    imported = import_folder(other)
    assert "lm_head.weight" in imported.graph.params()
    assert "untied" in next(a.note for a in imported.accounts if a.key == "tie_word_embeddings")
    with pytest.raises(ArchcError, match="so the head is not tied"):
        to_archc(other, tmp_path / "out", import_config(other))
    to_archc(other, tmp_path / "out", imported)
    model = build_from(other, tmp_path / "out")
    with torch.no_grad():
        logits = judge(oracle.ids).logits
        assert float((logits - oracle.logits).abs().max()) > 1
        assert float((model(oracle.ids) - logits).abs().max()) < 1e-4
    to_hf(tmp_path / "out", tmp_path / "back")
    assert same_bits(other, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["tie_word_embeddings"] is True


def test_every_tensor_that_does_not_fit_is_listed_and_nothing_is_written(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")

    def spoil(tensors: dict[str, Any]) -> dict[str, Any]:
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(3, 5)
        tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(48, 64, dtype=torch.int8)
        return {**tensors, "extra.a": torch.zeros(2), "extra.b": torch.zeros(2)}

    other = changed_tensors(folder, tmp_path / "in", spoil)
    with pytest.raises(ArchcError) as caught:
        to_archc(other, tmp_path / "out", import_folder(other))
    message = str(caught.value)
    for line in (
        "6 tensors do not fit the model",
        "model.norm.weight [64] is missing",
        "model.layers.1.mlp.up_proj.weight [96, 64] is missing",
        "model.layers.0.self_attn.q_proj.weight is [3, 5], not [96, 64]",
        "model.layers.0.self_attn.k_proj.weight is I8; weights should be F64, F32, F16, BF16",
        "extra.a [2] belongs to no weight of the model",
        "extra.b [2] belongs to no weight of the model",
    ):
        assert line in message
    assert sorted(place.name for place in tmp_path.iterdir()) == ["in"]
    with pytest.raises(ArchcError, match="6 tensors"):
        build_from(other, other)


def test_left_over_tensors_are_allowed_by_pattern_only(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")
    other = changed_tensors(
        folder,
        tmp_path / "in",
        lambda t: {**t, "vision_tower.a": torch.zeros(2), "audio.b": torch.zeros(2, dtype=torch.int64)},
    )
    with pytest.raises(ArchcError, match=r"1 tensor does not fit the model\n  audio\.b \[2\] belongs to no weight"):
        to_archc(other, tmp_path / "out", import_folder(other), allow_unused=["vision_tower.*"])
    done = to_archc(other, tmp_path / "out", import_folder(other), allow_unused=["vision_tower.*", "audio.?"])
    assert sorted(done.left_out) == ["audio.b", "vision_tower.a"]
    to_hf(tmp_path / "out", tmp_path / "back")
    assert same_bits(folder, tmp_path / "back")


def test_layers_that_predict_further_tokens_are_left_out_when_asked(saved: Saved, tmp_path: Path):
    _, folder = saved("deepseek_v3")
    last = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    other = changed_tensors(
        folder, tmp_path / "in", lambda t: {**t, f"model.layers.{last}.eh_proj.weight": torch.zeros(2, 2)}
    )
    with pytest.raises(ArchcError) as caught:
        to_archc(other, tmp_path / "out", import_folder(other))
    pattern = f"model.layers.{last}.*"
    assert f"--allow-unused '{pattern}' leaves them out" in str(caught.value)
    assert to_archc(other, tmp_path / "out", import_folder(other), allow_unused=[pattern]).left_out


def test_an_earlier_conversion_is_replaced_and_other_files_stay(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")
    out = tmp_path / "out"
    to_archc(folder, out, import_folder(folder), shard_bytes=50_000)
    (out / "notes.txt").write_text("mine")
    (out / "runs").mkdir()
    to_archc(folder, out, import_folder(folder))
    assert {file.name for file in out.iterdir()} == {WEIGHTS, "spec.yaml", "checkpoint.json", "notes.txt", "runs"} | {
        file.name for file in folder.iterdir() if file.name == "generation_config.json"
    }
    assert (out / "notes.txt").read_text() == "mine"
    assert sorted(place.name for place in tmp_path.iterdir()) == ["out"]


def test_a_changed_spec_and_a_folder_of_something_else_are_not_replaced(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")
    out = tmp_path / "out"
    to_archc(folder, out, import_folder(folder))
    (out / "spec.yaml").write_text((out / "spec.yaml").read_text() + "# mine\n")
    with pytest.raises(ArchcError, match=r"spec\.yaml was changed since it was written"):
        to_archc(folder, out, import_folder(folder))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    for place in (tmp_path / "full", folder):
        with pytest.raises(ArchcError, match="is there already and not empty"):
            to_archc(folder, place, import_folder(folder))
    (tmp_path / "file").write_text("a")
    with pytest.raises(ArchcError, match="is a file"):
        to_archc(folder, tmp_path / "file", import_folder(folder))


def test_a_conversion_that_is_interrupted_leaves_the_earlier_one(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")
    out = tmp_path / "out"
    to_archc(folder, out, import_folder(folder))
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def stop(name: str, done: int, total: int) -> None:
        if done == total // 2:
            raise KeyboardInterrupt

    for convert in (
        lambda: to_archc(folder, out, import_folder(folder), progress=stop),
        lambda: to_hf(out, tmp_path / "back", progress=stop),
    ):
        with pytest.raises(KeyboardInterrupt):
            convert()
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert sorted(place.name for place in tmp_path.iterdir()) == ["out"]


def test_progress_counts_every_tensor_once(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")
    seen: list[tuple[str, int, int]] = []
    done = to_archc(folder, tmp_path / "out", import_folder(folder), progress=lambda *news: seen.append(news))
    assert [number for _, number, _ in seen] == list(range(1, done.tensors + 1))
    assert {total for _, _, total in seen} == {done.tensors}


def test_the_way_back_needs_what_the_way_in_wrote(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")
    with pytest.raises(ArchcError, match=r"has no checkpoint\.json"):
        to_hf(folder, tmp_path / "back")
    out = tmp_path / "out"
    to_archc(folder, out, import_folder(folder))
    tensors = load_file(out / WEIGHTS)
    del tensors["norm.weight"]
    save_file({**tensors, "more": torch.zeros(1)}, out / WEIGHTS)
    with pytest.raises(ArchcError, match=r"(?s)norm\.weight is missing.*more is no weight of the model"):
        to_hf(out, tmp_path / "back")
    (out / "checkpoint.json").write_text('{"config": {"model_type": "llama"}, "naming": [1]}')
    with pytest.raises(ArchcError, match="is not as archc convert writes it"):
        to_hf(out, tmp_path / "back")
    assert not (tmp_path / "back").exists()


MEASURED = """
import sys
from pathlib import Path
from archc.checkpoint.convert import to_archc, to_hf
from archc.checkpoint.opening import import_folder

def most_bytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

source, out, back = map(Path, sys.argv[1:])
imported = import_folder(source)
before = most_bytes()
to_archc(source, out, imported)
to_hf(out, back)
print(most_bytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_that_of_the_largest_tensor(tmp_path: Path):
    import subprocess
    import sys

    from archc.checkpoint.opening import Model
    from archc.checkpoint.writing import Writer

    # Matrices of GPT-2 are stored inputs by outputs, so each is turned.
    config = {
        "model_type": "gpt2",
        "vocab_size": 512,
        "n_positions": 64,
        "n_embd": 512,
        "n_layer": 20,
        "n_head": 8,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    source = tmp_path / "in"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    parts = Model.of(import_config(source)).plan().parts
    tensors = {part.theirs: ("F32", part.shape_there) for part in parts}
    writer = Writer(source, tensors, shard_bytes=1 << 40, metadata={})
    writer.close()
    total_bytes = (source / WEIGHTS).stat().st_size
    largest_bytes = max(4 * math.prod(shape) for _, shape in tensors.values())
    assert total_bytes > 20 * largest_bytes
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, source, tmp_path / "out", tmp_path / "back"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # Each is held twice while it is turned.
    assert int(done.stdout) < 3 * largest_bytes


def test_a_configuration_without_a_dtype_has_that_of_its_tensors(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")
    halved = changed_tensors(
        folder, tmp_path / "in", lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()}
    )
    config = json.loads((halved / "config.json").read_text())
    assert import_folder(halved).spec.dtype == config["dtype"] == "float32"
    del config["dtype"]
    (halved / "config.json").write_text(json.dumps(config))
    imported = import_folder(halved)
    assert imported.spec.dtype == "bfloat16"
    account = next(account for account in imported.accounts if account.key == "dtype")
    assert (account.value, account.verdict) == ("bfloat16", "default")
    assert "of the tensors" in account.note
    assert import_config(halved).spec.dtype == "float32"


def test_a_record_of_other_names_and_weights_of_other_dtypes_are_refused_on_the_way_back(saved: Saved, tmp_path: Path):
    _, folder = saved("llama")
    out = tmp_path / "out"
    to_archc(folder, out, import_folder(folder))
    tensors = load_file(out / WEIGHTS)
    save_file({**tensors, "norm.weight": tensors["norm.weight"].to(torch.int8)}, out / WEIGHTS)
    with pytest.raises(ArchcError, match=r"norm\.weight is I8; weights should be F64"):
        to_hf(out, tmp_path / "back")
    save_file(tensors, out / WEIGHTS)
    origin = json.loads((out / "checkpoint.json").read_text())
    (out / "checkpoint.json").write_text(json.dumps({**origin, "naming": [["model.", "x"], ["lm_head.", "x"]]}))
    with pytest.raises(ArchcError, match="has no such names"):
        to_hf(out, tmp_path / "back")
