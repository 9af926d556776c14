"""What users get wrong: every problem by name in one message, exit code 2, and whatever lay there before is still there."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file, save_file

from archc.cli.main import archc
from archc.expansion import expand
from archc.spec.load import loads_spec

pytestmark = pytest.mark.onnx

SPEC = """
spec_version: 1
name: small
tokenizer: {kind: external, vocab_size: 61}
embedding: {hidden_size: 32, tie_word_embeddings: false}
position: none
norm: {kind: rms_norm, eps: 1e-5}
mixers:
  gqa: {kind: gqa, num_heads: 2, num_kv_heads: 2, head_dim: 16}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 3, block: pre_norm, mixer: gqa, ffn: mlp}
"""
NAMES = [name for name in expand(loads_spec(SPEC)).params() if "q_proj" in name]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec and weights that fit it."""
    folder = tmp_path_factory.mktemp("original")
    (folder / "small.yaml").write_text(SPEC)
    rng = np.random.default_rng(0)
    params = expand(loads_spec(SPEC)).params()
    tensors = {name: (rng.standard_normal(param.shape) * 0.1).astype(np.float32) for name, param in params.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    """A folder of a test's own with an export in it, which no failed attempt may touch, and a copy of the weights."""
    assert run(original / "small.yaml", "-o", tmp_path / "out", "--no-check").exit_code == 0
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "model.safetensors").write_bytes((original / "model.safetensors").read_bytes())
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(archc, ["export", *(str(argument) for argument in arguments)], catch_exceptions=False)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(place: Path, original: Path, *further: object) -> str:
    """What the command line says to weights or options that can't be; the export in the folder must stay as it is."""
    before = snapshot(place / "out")
    result = run(original / "small.yaml", "-o", place / "out", "--no-check", *further)
    assert result.exit_code == 2, result.output
    assert snapshot(place / "out") == before
    assert sorted(os.listdir(place)) == ["out", "w"]
    return result.stderr


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_raw(path: Path, header: bytes, data: bytes, length: int | None = None) -> None:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)


def test_weights_that_do_not_fit_are_all_named(place: Path, original: Path) -> None:
    file = place / "w" / "model.safetensors"
    tensors = load_file(file)
    for name in NAMES:
        tensors[f"model.{name}"] = tensors.pop(name)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:5].copy()
    tensors["norm.weight"] = tensors["norm.weight"][:, None].copy()
    save_file(tensors, file)
    assert refused(place, original, "--weights", place / "w") == (
        f"archc: {place / 'w'} doesn't fit the model\n"
        "  3 weights of the model are not in the file: layers.{0-2}.mixer.q_proj.weight\n"
        "  3 tensors of the file belong to no weight: model.layers.{0-2}.mixer.q_proj.weight\n"
        "  2 tensors have another shape: norm.weight is [32, 1], not [32], lm_head.weight is [5, 32], not [61, 32]\n"
    )


def test_weights_of_a_dtype_that_is_none_are_named(place: Path, original: Path) -> None:
    file = place / "w" / "model.safetensors"
    tensors = load_file(file)
    for name in (NAMES[0], NAMES[1], "norm.weight"):
        tensors[name] = tensors[name].astype(np.int8)
    save_file(tensors, file)
    assert refused(place, original, "--weights", file) == (
        f"archc: {file}: layers.{{0-1}}.mixer.q_proj.weight is I8, norm.weight is I8; "
        "weights should be F64, F32, F16, BF16\n"
    )


def garbage(file: Path) -> None:
    write_raw(file, b"no json at all {", b"\0" * 64)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def headless(file: Path) -> None:
    file.write_bytes(b"abc")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def huge_header(file: Path) -> None:
    write_raw(file, b"{}", b"", length=1 << 62)


def overlapping(file: Path) -> None:
    header, data = header_of(file)
    first, second, *_ = (name for name in header if name != "__metadata__")
    header[second]["data_offsets"] = header[first]["data_offsets"]
    write_raw(file, json.dumps(header).encode(), data)


def misstated(file: Path) -> None:
    header, data = header_of(file)
    header["norm.weight"]["shape"] = [1 << 40, 1 << 40]
    write_raw(file, json.dumps(header).encode(), data)


@pytest.mark.parametrize(
    "damage",
    [garbage, truncated, longer, headless, empty, huge_header, overlapping, misstated],
    ids=lambda f: f.__name__,
)
def test_a_damaged_file_is_refused(place: Path, original: Path, damage: Callable[[Path], None]) -> None:
    file = place / "w" / "model.safetensors"
    damage(file)
    message = refused(place, original, "--weights", file)
    assert message.startswith(f"archc: {file} can't be read as safetensors: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "a/../../b", "..\\secret", "C:\\secret", "", "a\0b"]
)
def test_an_index_reads_nothing_outside_its_folder(place: Path, original: Path, name: Any) -> None:
    index = place / "w" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"norm.weight": "model.safetensors", "lm_head.weight": name}}))
    message = refused(place, original, "--weights", place / "w")
    assert message == f"archc: {index} names files outside its folder, which are not read: {name}\n"


NO_MAP = "is no index of safetensors files: weight_map should map names to files\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON: "),
        ("[]", "should hold a mapping (found list)\n"),
        ("{}", NO_MAP),
        ('{"weight_map": 3}', NO_MAP),
        ('{"weight_map": ["a"]}', NO_MAP),
        ('{"weight_map": {"a": 7}}', NO_MAP),
        ('{"weight_map": {"a": null}}', NO_MAP),
        ("[" * 100000, "is no JSON: "),
    ],
)
def test_an_index_that_is_none_is_refused(place: Path, original: Path, text: str, message: str) -> None:
    index = place / "w" / "model.safetensors.index.json"
    index.write_text(text)
    assert refused(place, original, "--weights", place / "w").startswith(f"archc: {index} {message}")


def test_shards_that_are_missing_or_hold_a_weight_twice_are_named(place: Path, original: Path) -> None:
    folder = place / "w"
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors", "b.safetensors", "c.safetensors"]
    index.write_text(json.dumps({"weight_map": {str(number): file for number, file in enumerate(files)}}))
    message = refused(place, original, "--weights", folder)
    assert message == f"archc: {index} names files that are not there: b.safetensors, c.safetensors\n"
    tensors = load_file(folder / "model.safetensors")
    for file in files[1:]:
        save_file({name: tensors[name] for name in NAMES}, folder / file)
    message = refused(place, original, "--weights", folder)
    assert message == "archc: b.safetensors and c.safetensors both have layers.{0-2}.mixer.q_proj.weight\n"


def test_a_folder_without_weights_is_refused(place: Path, original: Path) -> None:
    (place / "w" / "model.safetensors").rename(place / "w" / "pytorch_model.bin")
    assert refused(place, original, "--weights", place / "w") == (
        f"archc: {place / 'w'}: pytorch_model.bin is no safetensors file. Pickled files can run code and are never opened; "
        "convert it in a place you trust: transformers' from_pretrained, then save_pretrained(folder, safe_serialization=True)\n"
    )
    (place / "w" / "pytorch_model.bin").unlink()
    assert refused(place, original, "--weights", place / "w") == (
        f"archc: {place / 'w'} is neither a safetensors file nor a folder with model.safetensors or its index\n"
    )


def test_a_value_beyond_float16_is_named(place: Path, original: Path) -> None:
    file = place / "w" / "model.safetensors"
    tensors = load_file(file)
    tensors["layers.1.ffn.down_proj.weight"][3, 4] = 1e5
    save_file(tensors, file)
    message = refused(place, original, "--weights", file, "--dtype", "f16")
    assert message == (
        "archc: layers.1.ffn.down_proj.weight.transposed has values that float16 can't hold; "
        "export it as bfloat16 or float32\n"
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--dtype", "int8"), "'int8' is no dtype here; known: float32, float16, bfloat16"),
        (("--dtype", "f8"), "f8"),
        (("--provider", "tpu"), "'tpu' is not one of 'cuda', 'cpu'"),
        (("--weights", "nowhere"), "'nowhere' does not exist"),
        (("--weights", "{weights}", "--no-weights"), "or no weights can be asked for, not both"),
        (("--max-model-len", "0"), "'0' should be at least 1"),
    ],
)
def test_options_that_can_not_be_are_refused(
    place: Path, original: Path, arguments: tuple[str, ...], part: str
) -> None:
    given = [argument.format(weights=place / "w") for argument in arguments]
    assert part in refused(place, original, *given)


def test_the_problem_is_plain_data_with_json(place: Path, original: Path) -> None:
    garbage(place / "w" / "model.safetensors")
    result = run(original / "small.yaml", "-o", place / "out", "--weights", place / "w", "--json")
    assert result.exit_code == 2
    (problem,) = json.loads(result.stdout)["problems"]
    assert "can't be read as safetensors" in problem["message"]


def test_a_folder_of_somebody_else_and_a_file_are_left_alone(place: Path, original: Path) -> None:
    result = run(original / "small.yaml", "-o", place / "w", "--no-check")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"archc: {place / 'w'} holds files and no export (model.safetensors); name another folder"
    )
    result = run(original / "small.yaml", "-o", place / "w" / "model.safetensors", "--no-check")
    assert result.exit_code == 2
    assert "model.safetensors' is a file" in result.stderr
    assert os.listdir(place / "w") == ["model.safetensors"]
    assert (place / "w" / "model.safetensors").read_bytes() == (original / "model.safetensors").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a place where nobody can write")
def test_a_place_where_nobody_can_write_is_named(original: Path) -> None:
    result = run(original / "small.yaml", "-o", "/proc/archc/out", "--no-check")
    assert result.exit_code == 2
    assert result.stderr.startswith("archc: /proc/archc/out can't be written: /proc/archc: ")
    assert result.stderr.endswith("; nothing in it was changed\n")


def test_weights_may_lie_in_the_folder_that_is_written(place: Path, original: Path) -> None:
    folder = place / "w"
    for _ in range(2):
        result = run(original / "small.yaml", "-o", folder, "--weights", folder, "--overwrite", "--no-check")
        assert result.exit_code == 0, result.output
    assert (folder / "model.safetensors").read_bytes() == (original / "model.safetensors").read_bytes()
    assert {"archc.json", "model.onnx", "model.onnx.data", "model.safetensors"} <= set(os.listdir(folder))


LIMITED = """
import resource, sys
from archc.cli.main import archc
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
archc(sys.argv[1:])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs limits of a process")
def test_a_file_that_can_not_grow_is_an_error_and_the_old_export_stays(place: Path, original: Path) -> None:
    before = snapshot(place / "out")
    command = ["export", str(original / "small.yaml"), "-o", str(place / "out"), "--no-check"]
    ran = subprocess.run([sys.executable, "-c", LIMITED, *command], capture_output=True, text=True, check=False)
    data = place / "out" / "model.onnx.data"
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == (
        f"archc: {place / 'out'} can't be written: {data}: File too large; nothing in it was changed"
    )
    assert snapshot(place / "out") == before
    assert sorted(os.listdir(place)) == ["out", "w"]


FILLED = """
import sys
from pathlib import Path
from archc.errors import ArchcError
from archc.expansion import expand
from archc.spec.load import load_spec
from archc_exporters.onnx.export import export

def fill(name, number, total):
    if number == 3:
        with open(Path(sys.argv[2]).parent / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass

try:
    export(expand(load_spec(sys.argv[1], ())), Path(sys.argv[2]), check=False, progress=fill)
except ArchcError as error:
    print(error)
"""


@pytest.fixture
def little_disk(tmp_path: Path) -> Any:
    """A file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "archc-test", str(disk)]
    if (
        sys.platform != "linux"
        or os.geteuid() != 0
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(little_disk: Path, original: Path) -> None:
    out = little_disk / "out"
    assert run(original / "small.yaml", "-o", out, "--no-check").exit_code == 0
    before = snapshot(little_disk)
    result = run(original / "small.yaml", "-o", out, "--no-check", "--set", "embedding.hidden_size=1024")
    assert result.exit_code == 2
    assert "archc: the weights take " in result.stderr
    assert f"the disk of {little_disk} has " in result.stderr
    assert snapshot(little_disk) == before
    # What is not written needs no room.
    bare = run(original / "small.yaml", "-o", out, "--no-weights", "--no-check", "--set", "embedding.hidden_size=1024")
    assert bare.exit_code == 0, bare.output


def test_a_disk_that_fills_up_meanwhile_is_an_error_and_the_old_export_stays(little_disk: Path, original: Path) -> None:
    out = little_disk / "out"
    assert run(original / "small.yaml", "-o", out, "--no-check").exit_code == 0
    before = snapshot(out)
    command = [sys.executable, "-c", FILLED, str(original / "small.yaml"), str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == (
        f"{out} can't be written: {out / 'model.onnx.data'}: No space left on device; nothing in it was changed\n"
    )
    assert snapshot(out) == before
    assert sorted(os.listdir(little_disk)) == ["filler", "out"]
