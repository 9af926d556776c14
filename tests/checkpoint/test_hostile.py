"""Files that are broken or mean harm: each gets one clear error and exit code 2, and nothing is written or run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")
pytest.importorskip("safetensors")

from safetensors.numpy import load_file, save_file  # noqa: E402

from archc.checkpoint.importing import import_config  # noqa: E402
from archc.checkpoint.opening import Model  # noqa: E402

Invoke = Callable[..., Any]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint, made without torch."""
    place = tmp_path / "in"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    parts = Model.of(import_config(place)).plan().parts
    draw = np.random.default_rng(0)
    save_file({p.theirs: draw.standard_normal(p.shape_there).astype(np.float32) for p in parts}, place / WEIGHTS)
    return place


def refused(invoke: Invoke, folder: Path, *words: str) -> None:
    """Converting ends in 2 with one message that has the words, without a traceback, and leaves nothing behind."""
    done = invoke("convert", folder, "-o", folder.parent / "out")
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("archc: ")
    for word in words:
        assert word in done.stderr
    assert sorted(place.name for place in folder.parent.iterdir() if place.name not in ("elsewhere", "ran")) == ["in"]


def header_of(entries: dict[str, Any], data: bytes = b"", *, length: int | None = None) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def test_the_sound_one_is_converted(invoke: Invoke, folder: Path, tmp_path: Path):
    assert invoke("convert", folder, "-o", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08",
        b"no safetensors at all, but long enough for a header",
        b"\xff" * 64,
        header_of({}, length=1 << 40),
        header_of({}, length=(1 << 63) + 5),
        struct.pack("<Q", 100_000_001) + b"{" * 64,
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 20_000) + b'{"a":' * 4_000,
        header_of({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}, b"\0" * 8),
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, b"\0" * 16),
        header_of({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, b"\0" * 8),
        header_of({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 8]}}, b"\0" * 8),
        header_of({"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8),
        header_of({"a": {"dtype": "F32", "shape": [2]}}, b"\0" * 8),
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 99),
    ],
    ids=lambda content: content[:24].hex(),
)
def test_a_file_that_is_no_safetensors_is_refused(invoke: Invoke, folder: Path, content: bytes):
    (folder / WEIGHTS).write_bytes(content)
    refused(invoke, folder, WEIGHTS, "can't be read as safetensors")


@pytest.mark.parametrize("cut", [1, 100, 4_000])
def test_a_truncated_file_is_refused(invoke: Invoke, folder: Path, cut: int):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-cut])
    refused(invoke, folder, "can't be read as safetensors")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I32", "U8", "BOOL", "I64"])
def test_a_weight_of_a_dtype_that_is_none_of_weights_is_refused(invoke: Invoke, folder: Path, dtype: str):
    width = {"F8_E4M3": 1, "I32": 4, "U8": 1, "BOOL": 1, "I64": 8}[dtype]
    content = (folder / WEIGHTS).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    spoiled, pieces, end = {}, [], 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        piece = data[start:stop]
        if name == "model.norm.weight":
            entry = {**entry, "dtype": dtype}
            piece = b"\0" * (16 * width)
        spoiled[name] = {**entry, "data_offsets": [end, end + len(piece)]}
        pieces.append(piece)
        end += len(piece)
    (folder / WEIGHTS).write_bytes(header_of(spoiled, b"".join(pieces)))
    refused(invoke, folder, f"model.norm.weight is {dtype}; weights should be F64, F32, F16, BF16")


def test_a_quantised_checkpoint_says_what_to_do(invoke: Invoke, folder: Path):
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": "fp8"}}))
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.0.mlp.up_proj.weight_scale_inv"] = np.zeros((1, 1), np.float32)
    save_file(tensors, folder / WEIGHTS)
    refused(invoke, folder, "weight_scale_inv", "dequantise it first")


def test_parts_of_one_weight_in_two_dtypes_are_refused(invoke: Invoke, tmp_path: Path):
    place = tmp_path / "in"
    place.mkdir()
    more = {"num_experts_per_tok": 1, "num_local_experts": 2, "model_type": "mixtral"}
    (place / "config.json").write_text(json.dumps({**CONFIG, **more}))
    parts = Model.of(import_config(place)).plan().parts
    tensors = {part.theirs: np.zeros(part.shape_there, np.float32) for part in parts}
    name = next(part.theirs for part in parts if part.expert == 1)
    tensors[name] = tensors[name].astype(np.float16)
    save_file(tensors, place / WEIGHTS)
    refused(invoke, place, f"{name} is F16, other parts of", "are F32")


def sharded(folder: Path, **more: str) -> None:
    """The checkpoint in two files with an index; ``more`` are entries of the index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, inside in halves.items():
        save_file({name: tensors[name] for name in inside}, folder / file)
    table = {name: file for file, inside in halves.items() for name in inside}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {**table, **more}}))


def test_shards_are_read_by_their_index(invoke: Invoke, folder: Path, tmp_path: Path):
    sharded(folder)
    assert invoke("convert", folder, "-o", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize(
    "place",
    ["../elsewhere/x.safetensors", "/etc/passwd", "a/../../b.safetensors", "..", "", "c:\\x.safetensors", "a\0b"],
)
def test_an_index_may_not_point_outside_its_folder(invoke: Invoke, folder: Path, place: str):
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(folder / WEIGHTS, elsewhere / "x.safetensors")
    sharded(folder, **{"model.norm.weight": place})
    refused(invoke, folder, "names files outside its folder")


def test_an_index_that_names_a_missing_or_a_pickled_file_is_refused(invoke: Invoke, folder: Path):
    sharded(folder, **{"model.norm.weight": "c.safetensors"})
    refused(invoke, folder, "names files that are not there: c.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    refused(invoke, folder, "pytorch_model.bin is no safetensors file", "safe_serialization=True")


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "\ufffd", "[" * 100_000]
)
def test_an_index_that_is_none_is_refused(invoke: Invoke, folder: Path, text: str):
    (folder / INDEX).write_text(text)
    refused(invoke, folder, INDEX)


def test_a_name_in_two_shards_is_refused(invoke: Invoke, folder: Path):
    sharded(folder)
    both = {**load_file(folder / "b.safetensors"), **load_file(folder / "a.safetensors")}
    save_file(both, folder / "b.safetensors")
    refused(invoke, folder, "a.safetensors and b.safetensors", "both have", "more")


def test_a_pickled_checkpoint_is_never_opened(invoke: Invoke, folder: Path):
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (folder.parent / "ran",)

    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harm()))
    refused(
        invoke, folder, "pytorch_model.bin is no safetensors file", "save_pretrained(folder, safe_serialization=True)"
    )
    assert not (folder.parent / "ran").exists()
    assert invoke("import", folder).exit_code == 0
    assert not (folder.parent / "ran").exists()


def test_a_folder_without_weights_is_refused(invoke: Invoke, folder: Path):
    (folder / WEIGHTS).unlink()
    refused(invoke, folder, "neither a safetensors file nor a folder with model.safetensors")


def test_a_link_in_place_of_the_output_is_followed_and_kept(invoke: Invoke, folder: Path, tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert invoke("convert", folder, "-o", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "disk" / WEIGHTS).is_file()


def test_a_record_that_names_files_outside_removes_none(invoke: Invoke, folder: Path, tmp_path: Path):
    out = tmp_path / "out"
    assert invoke("convert", folder, "-o", out).exit_code == 0
    (tmp_path / "mine").write_text("mine")
    origin = json.loads((out / "checkpoint.json").read_text())
    (out / "checkpoint.json").write_text(
        json.dumps({**origin, "files": [*origin["files"], "../mine", "..", "/etc/passwd"]})
    )
    assert invoke("convert", folder, "-o", out).exit_code == 0
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_disk_that_is_too_small_is_noticed_first(invoke: Invoke, folder: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    refused(invoke, folder, "the weights need", "1000 B free")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[1]", "should hold a mapping (found list)"),
        ('"llama"', "should hold a mapping (found str)"),
        ("{}", "model_type is missing"),
        ('{"model_type": 3}', "model_type is missing"),
        ('{"model_type": "lama"}', "Did you mean llama?"),
        ('{"model_type": "../../llama"}', "is not known"),
        ('{"model_type": "' + "x" * 5_000 + '"}', "is not known"),
        ('{"a": ' * 100_000, "is no JSON"),
        ('{"model_type": "llama", "hidden_size": NaN}', "is no JSON: NaN is no value"),
        ('{"model_type": "llama", "hidden_size": ' + "9" * 5_000 + "}", "is no JSON"),
        (json.dumps({**CONFIG, "num_hidden_layers": 10**12}), "is no number of layers from 1 to 10,000"),
        (json.dumps({**CONFIG, "num_hidden_layers": -1}), "is no number of layers from 1 to 10,000"),
        (json.dumps({**CONFIG, "num_hidden_layers": True}), "is no number of layers from 1 to 10,000"),
        (json.dumps({**CONFIG, "hidden_size": "wide"}), "can't be read as llama"),
        (json.dumps({**CONFIG, "num_attention_heads": 0}), "can't be read as llama"),
        (json.dumps({**CONFIG, "num_attention_heads": [2]}), "can't be read as llama"),
        (json.dumps({**CONFIG, "rope_scaling": {"rope_type": "spiral"}}), "'spiral' is a rope type that is not known"),
        (json.dumps({**CONFIG, "rope_scaling": "yarn"}), "rope_scaling: 'yarn' is no mapping"),
        (json.dumps({**CONFIG, "rope_scaling": {"rope_type": "linear"}}), "rope_scaling.factor is missing"),
        (json.dumps({**CONFIG, "rope_theta": {"__float__": "1e999; rm"}}), "can't be read as llama"),
        (json.dumps({**CONFIG, "new_idea": 1, "newer_idea": 2}), "2 keys of llama can't be honoured"),
        (json.dumps({**CONFIG, "hidden_size": -16}), "hidden_size"),
        (json.dumps({**CONFIG, "hidden_size": 1e300}), "hidden_size"),
        (json.dumps({**CONFIG, "dtype": "int3"}), "dtype"),
        (json.dumps({**CONFIG, "rms_norm_eps": "tiny"}), "eps"),
    ],
    ids=lambda value: value[:60],
)
def test_a_configuration_that_makes_no_sense_is_refused(invoke: Invoke, tmp_path: Path, text: str, words: str):
    (tmp_path / "config.json").write_text(text)
    for arguments in ((), ("--check",), ("--json",), ("-o", tmp_path / "spec.yaml")):
        done = invoke("import", tmp_path, *arguments)
        assert done.exit_code == 2, done.output
        assert words in done.stderr
        assert len(done.stderr) < 20_000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json"]


def test_a_configuration_that_is_too_large_is_not_read(invoke: Invoke, tmp_path: Path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    done = invoke("import", tmp_path)
    assert done.exit_code == 2
    assert "are not read" in done.stderr


def test_a_configuration_that_never_ends_is_not_read(invoke: Invoke, tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    for target in (tmp_path / "fifo", Path("/dev/zero")):
        (tmp_path / "config.json").symlink_to(target)
        done = invoke("import", tmp_path)
        assert done.exit_code == 2
        assert "is no file" in done.stderr
        (tmp_path / "config.json").unlink()


def test_a_folder_without_a_configuration_is_refused(invoke: Invoke, tmp_path: Path):
    done = invoke("import", tmp_path)
    assert done.exit_code == 2
    assert "config.json can't be read: No such file or directory" in done.stderr


def test_files_that_are_links_are_followed_as_caches_of_hubs_have_them(invoke: Invoke, folder: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in list(folder.iterdir()):
        file.rename(elsewhere / file.name)
        file.symlink_to(elsewhere / file.name)
    assert invoke("convert", folder, "-o", tmp_path / "out").exit_code == 0
    (elsewhere / WEIGHTS).unlink()
    shutil.rmtree(tmp_path / "out")
    refused(invoke, folder, "neither a safetensors file nor a folder with model.safetensors")


def test_a_conversion_is_not_converted_again(invoke: Invoke, folder: Path, tmp_path: Path):
    assert invoke("convert", folder, "-o", tmp_path / "out").exit_code == 0
    again = invoke("convert", tmp_path / "out", "-o", tmp_path / "more")
    assert again.exit_code == 2
    assert "--to hf is the way back from it" in again.stderr
    assert not (tmp_path / "more").exists()
