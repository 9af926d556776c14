"""``archc import`` and ``archc convert`` from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from archc.spec.load import load_spec

Invoke = Callable[..., Result]
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "rope_theta": 500.0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration, and random weights where numpy is installed."""
    place = tmp_path / "Tiny_Model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    return place


@pytest.fixture
def checkpoint(folder: Path) -> Path:
    np = pytest.importorskip("numpy")
    pytest.importorskip("ml_dtypes")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    from archc.checkpoint.importing import import_config
    from archc.checkpoint.opening import Model

    parts = Model.of(import_config(folder)).plan().parts
    draw = np.random.default_rng(0)
    save_file(
        {part.theirs: draw.standard_normal(part.shape_there).astype(np.float32) for part in parts},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_the_spec_is_printed_and_can_be_estimated(invoke: Invoke, folder: Path, tmp_path: Path):
    done = invoke("import", folder)
    assert done.exit_code == 0
    assert done.stdout.startswith("spec_version: 1\nname: tiny-model\n")
    assert "position: {kind: rope, theta: 500.0}" in done.stdout
    assert invoke("import", folder / "config.json").stdout == done.stdout
    (tmp_path / "spec.yaml").write_text(done.stdout)
    assert invoke("estimate", tmp_path / "spec.yaml").exit_code == 0


def test_the_spec_is_written_and_another_file_is_not_replaced_unasked(invoke: Invoke, folder: Path, tmp_path: Path):
    spec = tmp_path / "spec.yaml"
    done = invoke("import", folder, "-o", spec, "--name", "mine")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"wrote {spec}" in done.stderr
    assert load_spec(spec).name == "mine"
    assert invoke("import", folder, "-o", spec, "--name", "mine").exit_code == 0
    spec.write_text(spec.read_text() + "# changed by hand\n")
    before = spec.read_text()
    refused = invoke("import", folder, "-o", spec)
    assert (refused.exit_code, spec.read_text()) == (2, before)
    assert "--overwrite replaces it" in refused.stderr
    assert invoke("import", folder, "-o", spec, "--overwrite").exit_code == 0
    assert load_spec(spec).name == "tiny-model"


def test_check_prints_what_became_of_every_key(invoke: Invoke, folder: Path):
    done = invoke("import", folder, "--check")
    assert done.exit_code == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("  ")}
    assert lines["hidden_size"] == "16 used"
    assert lines["rms_norm_eps"] == "1e-06 class default of transformers' class"
    assert lines["model_type"] == "llama no effect names the family"
    assert set(CONFIG) <= set(lines)
    assert done.stdout.splitlines()[-1].endswith("0 refused")


def test_check_prints_the_refused_keys_too_and_ends_in_2(invoke: Invoke, folder: Path):
    (folder / "config.json").write_text(json.dumps({**CONFIG, "new_idea": [1], "newer": None, "hidden_act": "sine"}))
    done = invoke("import", folder, "--check")
    assert done.exit_code == 2
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["new_idea", "[1]", "refused"] in [row[:3] for row in rows]
    assert "3 refused" in done.stdout
    assert "3 keys of llama can't be honoured" in done.stderr
    plain = invoke("import", folder)
    assert (plain.exit_code, plain.stdout) == (2, "")


def test_json_holds_the_spec_and_the_accounts(invoke: Invoke, folder: Path):
    data = json.loads(invoke("import", folder, "--json").stdout)
    assert (data["family"], data["name"]) == ("llama", "tiny-model")
    assert data["spec"] == invoke("import", folder).stdout
    theta = next(account for account in data["accounts"] if account["key"] == "rope_theta")
    assert theta == {"key": "rope_theta", "value": 500.0, "verdict": "used", "note": ""}
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "lama"}))
    failed = invoke("import", folder, "--json")
    assert failed.exit_code == 2
    assert "Did you mean llama?" in json.loads(failed.stdout)["problems"][0]["message"]


def test_rows_that_stand_for_nothing_are_told_from_ids_by_the_tokenizer(invoke: Invoke, folder: Path):
    tokenizer = {"model": {"vocab": {"a": 0, "b": 7}}, "added_tokens": [{"id": 28, "content": "<end>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = invoke("import", folder)
    assert "tokenizer: {kind: external, vocab_size: 29, " in done.stdout
    assert "num_embeddings: 32" in done.stdout
    assert "of these rows, 29 are ids of tokenizer.json" in invoke("import", folder, "--check").stdout
    for other in ({}, {"model": {"vocab": 3}}, {"added_tokens": [{"id": 99}]}, {"added_tokens": [{"id": 0}]}):
        (folder / "tokenizer.json").write_text(json.dumps(other))
        assert "num_embeddings" not in invoke("import", folder).stdout
    (folder / "tokenizer.json").write_text("{")
    assert invoke("import", folder).exit_code == 2


def test_reading_a_configuration_loads_neither_torch_nor_numpy(folder: Path):
    code = (
        "import sys\n"
        f"sys.argv = ['archc', 'import', {str(folder)!r}]\n"
        "from archc.cli.main import run\n"
        "try:\n    run()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print([name for name in ('torch', 'numpy', 'safetensors') if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_convert_there_and_back(invoke: Invoke, checkpoint: Path, tmp_path: Path):
    there, back = tmp_path / "there", tmp_path / "back"
    done = invoke("convert", checkpoint, "-o", there, "--max-shard-size", "4KB")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("21 weights, 21 tensors, ")
    assert (there / "model.safetensors.index.json").is_file()
    assert load_spec(there / "spec.yaml").name == "tiny-model"
    assert invoke("convert", there, "-o", back, "--to", "hf").exit_code == 0
    for name in ("config.json", "tokenizer.json"):
        assert json.loads((back / name).read_text()) == json.loads((checkpoint / name).read_text())


def test_convert_says_what_it_did_as_data(invoke: Invoke, checkpoint: Path, tmp_path: Path):
    data: dict[str, Any] = json.loads(invoke("convert", checkpoint, "-o", tmp_path / "out", "--json").stdout)
    assert (data["weights"], data["tensors"], data["left_out"]) == (21, 21, [])
    assert sorted(data["files"]) == sorted(file.name for file in (tmp_path / "out").iterdir())
    assert data["weight_bytes"] < (tmp_path / "out" / "model.safetensors").stat().st_size


@pytest.mark.parametrize("size", ["", "0", "-1GB", "5 apples", "1e9", "0.0000001KB", "9999999TB", "9" * 40])
def test_a_size_that_is_none_is_refused(invoke: Invoke, checkpoint: Path, tmp_path: Path, size: str):
    done = invoke("convert", checkpoint, "-o", tmp_path / "out", f"--max-shard-size={size}")
    assert done.exit_code == 2
    assert "is no size" in done.stderr
    assert not (tmp_path / "out").exists()


def test_options_of_the_way_in_are_refused_on_the_way_back(invoke: Invoke, checkpoint: Path, tmp_path: Path):
    done = invoke("convert", checkpoint, "-o", tmp_path / "out", "--to", "hf", "--allow-unused", "x*")
    assert done.exit_code == 2
    assert "for the way to archc" in done.stderr
