"""What is wrong with a folder, a prompt or a machine is said before anything runs, with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import archc
from archc.errors import ArchcError
from archc_exporters.onnx.export import export
from archc_exporters.runtime.model import load
from archc_exporters.runtime.provider import choose, cuda_devices
from tests.onnx.conftest import graph_of

pytestmark = [pytest.mark.onnx, pytest.mark.torch]


@pytest.fixture
def folder(ready: Callable[..., Any], tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(ready("llama").folder, tmp_path / "model"))


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "archc.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes))


def test_archc_load_is_the_runtime_s(folder: Path) -> None:
    assert archc.load(folder, provider="cpu", threads=1).generate([1, 2], max_new_tokens=2).finished == ["length"]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ArchcError, match=r"nothing is no folder; archc export SPEC -o .*nothing makes one"):
        load(tmp_path / "nothing")
    with pytest.raises(ArchcError, match=r"has no archc\.json, so it is no export"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "model.onnx.data").unlink(), r"is not whole: model\.onnx\.data is missing \([\d,]+ B\)"),
        (
            lambda f: (f / "model.onnx.data").write_bytes(b"short"),
            r"model\.onnx\.data has 5 B, not [\d,]+\. Copy or export",
        ),
        (lambda f: (f / "model.onnx").write_bytes(b""), r"model\.onnx has 0 B"),
        (
            lambda f: (f / "archc.json").write_text("{"),
            r"archc\.json is not what archc export writes: file: Invalid JSON",
        ),
        (lambda f: (f / "archc.json").write_text("[]"), r"archc\.json is not what archc export writes"),
        (lambda f: (f / "archc.json").write_bytes(b"\xff\xfe"), r"archc\.json can't be read"),
        (lambda f: edited(f, format=2), r"is not what archc \(format 1\) writes: format: Input should be 1.*Export"),
        (lambda f: edited(f, caches=[{}]), r"caches\.0\.input: Field required"),
        (lambda f: edited(f, caches=[{"shape": ["batch", "length"]}]), r"caches\.0\."),
        (lambda f: edited(f, inputs=[]), r"lists no input input_ids, past_length"),
        (lambda f: edited(f, files={}), r"lists no model\.onnx; export"),
        (
            lambda f: edited(f, target={"provider": "cpu", "dtype": "float16", "io": "genai"}),
            "exported with --io genai, which onnxruntime-genai runs; export it with --io archc",
        ),
    ],
)
def test_a_spoilt_folder(folder: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(folder)
    with pytest.raises(ArchcError, match=message):
        load(folder)


def test_a_model_file_of_the_right_size_and_the_wrong_content(folder: Path) -> None:
    size = (folder / "model.onnx").stat().st_size
    (folder / "model.onnx").write_bytes(b"\1" * size)
    with pytest.raises(ArchcError, match=r"model\.onnx can't be loaded by onnxruntime 1"):
        load(folder, provider="cpu")


def test_caches_that_are_not_those_of_the_file(folder: Path) -> None:
    caches = json.loads((folder / "archc.json").read_text("utf-8"))["caches"]
    caches[0]["shape"][1] += 1
    edited(folder, caches=caches)
    with pytest.raises(
        ArchcError, match=r"onnxruntime 1\S+ failed in a step of \(1, 2\) tokens over caches of 8 rows: .*key"
    ):
        load(folder, provider="cpu", threads=1).generate([1, 2], max_new_tokens=2)


def test_a_tokenizer_of_the_right_size_and_the_wrong_content(writer: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(writer, tmp_path / "model"))
    size = (folder / "tokenizer.json").stat().st_size
    (folder / "tokenizer.json").write_bytes(b" " * size)
    with pytest.raises(ArchcError, match=r"is no tokenizer\.json"):
        load(folder, provider="cpu")


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "there is no prompt"),
        ([[1], []], {}, "prompt 1 is empty; a prompt has at least one token"),
        ([[1, 61]], {}, "prompt 0 has the id 61; this model's ids are 0 to 60"),
        ([[1], [-1]], {}, "prompt 1 has the id -1"),
        (["text"], {}, "has no tokenizer, so a prompt is ids; archc export --tokenizer FILE puts one there"),
        (
            [[1] * 38],
            {"max_new_tokens": 3},
            "a prompt of 38 tokens and 3 new ones are 41, more than the 40 of max_model_len",
        ),
        ([[1] * 40], {}, "a prompt of 40 tokens and 1 new ones are 41"),
        ([[1] * 5], {"max_new_tokens": 6, "max_model_len": 10}, "are 11, more than the 10 of max_model_len"),
        ([[1]], {"max_model_len": 41}, "max_model_len 41 is more than the 40 that the file was made for"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens should be at least 1"),
        ([[1]], {"chunk_size": 7}, "chunk_size should be at least 8"),
        ([[1]], {"temperature": -0.5}, "temperature should be 0 or more"),
    ],
)
def test_what_can_not_be_generated(folder: Path, prompts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchcError, match=message):
        load(folder, provider="cpu", threads=1).generate(prompts, **options)


def test_exactly_the_room_that_is_there_can_be_used(folder: Path) -> None:
    found = load(folder, provider="cpu", threads=1).generate([[1] * 38], max_new_tokens=2)
    assert len(found.ids[0]) == 2


def test_providers_and_dtypes_that_can_not_run_here(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ArchcError, match="provider 'tpu' is unknown; known: cpu, cuda"):
        load(folder, provider="tpu")
    with pytest.raises(ArchcError, match=r"threads should be 0 or more \(found -1\)"):
        load(folder, threads=-1)
    export(graph_of("llama"), tmp_path / "half", dtype="bfloat16", check=False)
    with pytest.raises(ArchcError, match="is bfloat16, which onnxruntime's CPU can't run; export it with --dtype f32"):
        load(tmp_path / "half", provider="cpu")


@pytest.mark.skipif(cuda_devices() > 0, reason="a CUDA device is here")
def test_without_a_device_cuda_is_refused_and_the_cpu_is_the_default(folder: Path) -> None:
    assert choose("cuda", None) == choose("cpu", None) == "cpu"
    with pytest.raises(ArchcError, match=r"CUDA.*take --provider cpu"):
        load(folder, provider="cuda")


def test_a_model_without_a_head_has_nothing_to_generate_from(tmp_path: Path) -> None:
    export(graph_of("mla and kda keys"), tmp_path, dtype="float32", provider="cpu", check=False)
    with pytest.raises(ArchcError, match="ends in hidden_states, not in logits"):
        load(tmp_path)


def test_a_graph_without_weights_is_not_run(tmp_path: Path) -> None:
    export(graph_of("llama"), tmp_path / "out", dtype="float32", provider="cpu", no_weights=True, check=False)
    with pytest.raises(ArchcError, match=r"was exported with --no-weights, so it has no model\.onnx\.data"):
        load(tmp_path / "out")


def test_caches_that_no_memory_holds_are_named_with_their_size(folder: Path) -> None:
    model = load(folder, provider="cpu", threads=1)
    model.contract = model.contract.model_copy(update={"max_model_len": 1 << 50})
    with pytest.raises(ArchcError, match=r"caches of [\d.]+ [TPE]iB for 2 sequences of [\d,]+ rows don't fit into the"):
        model.generate([[1], [2]], max_new_tokens=1 << 48)
