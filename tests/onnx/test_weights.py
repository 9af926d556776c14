"""Weights on their way into a file: cut, transposed, joined and cast in pieces, with little memory, to known places."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from safetensors.numpy import save_file

from archc.errors import ArchcError
from archc.expansion import expand
from archc.ir.values import Param
from archc.spec.load import load_spec, loads_spec
from archc_exporters.onnx import transforms
from archc_exporters.onnx import weights as streaming
from archc_exporters.onnx.arrays import DTYPES, Array
from archc_exporters.onnx.checkpoint import SafetensorsWeights
from archc_exporters.onnx.export import export
from archc_exporters.onnx.listing import listed
from archc_exporters.onnx.transforms import Parts, Rows, Transform, Transposed
from archc_exporters.onnx.weights import joined, lazy_tensor

pytestmark = pytest.mark.onnx

MIB = 1 << 20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and pages of files are let go on Linux")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, so that tensors of a test consist of many."""
    monkeypatch.setattr(streaming, "_PIECE_BYTES", 64)
    monkeypatch.setattr(transforms, "_CHUNK_BYTES", 4096)


class Given:
    """Arrays as a source of weights."""

    def __init__(self, **arrays: Array) -> None:
        self.arrays = arrays
        self.released: list[str] = []

    def read(self, name: str, param: Param) -> Array:
        return self.arrays[name]

    def release(self, name: str) -> None:
        self.released.append(name)


def made_of(source: Given, shape: tuple[int, ...], transform: Transform | None, dtype: str = "float32") -> Any:
    params = [(name, Param(name, array.shape)) for name, array in source.arrays.items()]
    return lazy_tensor("made", shape, DTYPES[dtype], params, transform, source)


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def interleaved(gate: Array, up: Array) -> Array:
    return np.stack((gate, up), 2).reshape(-1, 2 * gate.shape[1], *gate.shape[2:])


def each_transposed(stack: Array) -> Array:
    return stack.transpose(0, 2, 1).reshape(-1, stack.shape[1])


def halves(matrix: Array) -> Array:
    return matrix.reshape(-1, 6, matrix.shape[1])[:, :2]


FORMS: dict[str, tuple[tuple[Array, ...], Transform | None, Callable[..., Array]]] = {
    "as it is": ((draw(40, 7),), None, lambda w: w),
    "a vector": ((draw(300),), None, lambda w: w),
    "no rows": ((draw(0, 3),), None, lambda w: w),
    "the first rows": ((draw(40, 7),), Rows(33), lambda w: w[:33]),
    "transposed": ((draw(130, 70),), Transposed(), lambda w: w.T),
    "the first rows, transposed": ((draw(130, 70),), Transposed(101), lambda w: w[:101].T),
    "a stack side by side": ((draw(5, 9, 8),), Transposed(), lambda w: w.reshape(45, 8).T),
    "two stacks, interleaved": (
        (draw(6, 5, 4), draw(6, 5, 4, seed=1)),
        Parts(interleaved, 6),
        lambda g, u: np.stack((g, u), 2).reshape(6, 10, 4),
    ),
    "a stack, each transposed": ((draw(6, 4, 5),), Parts(each_transposed, 6), each_transposed),
    "a part of every head": ((draw(48, 3),), Parts(halves, 8), halves),
    "any function": ((draw(50, 3), draw(50, 3, seed=1)), np.add, np.add),
}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("form", FORMS)
def test_pieces_make_what_the_whole_makes(form: str) -> None:
    arrays, transform, whole = FORMS[form]
    expected = np.ascontiguousarray(whole(*arrays))
    source = Given(**{f"w{number}": array for number, array in enumerate(arrays)})
    tensor = made_of(source, expected.shape, transform)
    written = io.BytesIO()
    tensor.tofile(written)
    assert written.getvalue() == expected.tobytes() == tensor.tobytes()
    assert np.array_equal(tensor.numpy(), expected)
    if expected.size > 100:
        assert sum(1 for _ in tensor.pieces()) > 1
    assert set(source.released) == (set(source.arrays) if expected.size else set())


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_tensors_are_joined_along_an_axis(axis: int) -> None:
    shape = [4, 4, 4]
    arrays: list[Array] = []
    for width in (1, 3, 2):
        shape[axis] = width
        arrays.append(draw(*shape, seed=width).astype(np.float16))
    whole = joined("whole", [ir.tensor(array) for array in arrays], axis)
    expected = np.concatenate(arrays, axis)
    assert (whole.name, whole.dtype, whole.shape.numpy()) == ("whole", ir.DataType.FLOAT16, expected.shape)
    assert np.array_equal(whole.numpy(), expected)
    assert whole.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("axis", [0, 1])
def test_joined_weights_are_read_in_pieces_whatever_each_of_them_is(axis: int) -> None:
    side = draw(24, 24)
    stack = draw(4, 24, 6, seed=1)
    parts = [
        made_of(Given(a=side), (24, 24), Transposed()),
        # Six rows of a part are made together.
        made_of(Given(b=stack), (24, 24), Parts(each_transposed, 4)),
        made_of(Given(c=side), (24, 24), np.negative),
        ir.tensor(side),
    ]
    expected = np.concatenate([side.T, each_transposed(stack), -side, side], axis)
    whole = joined("whole", parts, axis)
    written = io.BytesIO()
    whole.tofile(written)
    assert written.getvalue() == expected.tobytes()
    assert sum(1 for _ in whole.pieces()) > 1


@pytest.mark.torch
@pytest.mark.parametrize("stored", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
def test_a_cast_on_the_way_rounds_as_torch_does(tmp_path: Path, stored: str, wanted: str) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    numbers = torch.from_numpy(draw(64, 32)).to(getattr(torch, stored))
    numbers[0, :4] = torch.tensor([0.0, -0.0, 6e-8, 3e4])
    save_torch({"w": numbers}, tmp_path / "w.safetensors")
    source = SafetensorsWeights(tmp_path / "w.safetensors", {"w": Param("w", (64, 32))})
    written = io.BytesIO()
    lazy_tensor("w", (32, 64), DTYPES[wanted], [("w", Param("w", (64, 32)))], Transposed(), source).tofile(written)
    expected = numbers.to(getattr(torch, wanted)).T.contiguous()
    assert written.getvalue() == bytes(expected.view(torch.uint8).numpy().data)


def test_a_value_beyond_float16_is_an_error_and_bfloat16_holds_it() -> None:
    source = Given(w=np.array([[1.0, 70000.0]], np.float32))
    with pytest.raises(ArchcError, match="made has values that float16 can't hold; export it as bfloat16 or float32"):
        made_of(source, (1, 2), None, "float16").tobytes()
    assert np.isfinite(made_of(source, (1, 2), None, "bfloat16").numpy().astype(np.float32)).all()


def test_names_that_differ_in_numbers_are_listed_whole_and_short() -> None:
    names = [f"layers.{layer}.experts.{expert}.w" for layer in (0, 1, 2, 5) for expert in range(300)]
    assert listed([*names, "norm.weight"]) == "layers.{0-2}.experts.{0-299}.w, layers.5.experts.{0-299}.w, norm.weight"
    assert listed(["layers.3.a", "layers.7.a", "b"]) == "layers.3.a, layers.7.a, b"
    assert listed(["layers.3.a is [5], not [6]"]) == "layers.3.a is [5], not [6]"


MIXTURE = """
spec_version: 1
name: mixture
tokenizer: {{kind: external, vocab_size: {vocab}}}
embedding: {{hidden_size: {width}, tie_word_embeddings: {tied}}}
position: {{kind: rope, theta: 10000.0}}
norm: {{kind: rms_norm, eps: 1e-5}}
mixers:
  gqa: {{kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: {head}}}
ffns:
  dense: {{kind: swiglu, intermediate_size: {wide}}}
  moe:
    kind: moe
    num_experts: 16
    num_experts_per_tok: 2
    intermediate_size: {inner}
    expert: {{kind: swiglu}}
    router: {{scoring_func: softmax, norm_topk_prob: true}}
stack: {{num_layers: 2, block: pre_norm, mixer: gqa, ffn: dense moe}}
max_position_embeddings: 64
"""
SMALL = MIXTURE.format(vocab=61, width=32, head=8, wide=48, inner=16, tied="false")
LARGE = MIXTURE.format(vocab=2000, width=2048, head=512, wide=4096, inner=1024, tied="false")


def sparse_file(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of zeros in float32 that takes no room on the disk."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * 4
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


PEAK = """
def peak():
    # Not ru_maxrss, which begins with that of the process that started this one.
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
"""
MEASURED = f"""
import sys
from pathlib import Path
from archc.expansion import expand
from archc.spec.load import load_spec, loads_spec
from archc_exporters.onnx.export import export
{PEAK}
graph = expand(loads_spec(sys.argv[1]))
before = peak()
export(graph, Path(sys.argv[2]), weights=Path(sys.argv[3]), check=False)
print(before, peak())
"""


@on_linux
def test_an_export_takes_far_less_memory_than_its_largest_tensor(tmp_path: Path) -> None:
    shapes = {name: param.shape for name, param in expand(loads_spec(LARGE)).params().items()}
    names = list(shapes)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        sparse_file(tmp_path / file, {name: shapes[name] for name in members})
    weight_map = {name: file for file, members in shards.items() for name in members}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, LARGE, str(tmp_path / "out"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    proto = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    sizes = {tensor.name: int(np.prod(tensor.dims)) * 2 for tensor in proto.graph.initializer}
    # Gate and up of 16 experts in one stack: 16 x 2 x 1024 x 2048 elements of 2 bytes, and twice that in the source.
    assert max(sizes.values()) == 128 * MIB
    before, peak = (int(word) for word in ran.stdout.split())
    assert before < 200 * MIB
    assert before < peak < before + 96 * MIB


def test_without_weights_the_graph_and_every_offset_are_the_same(tmp_path: Path) -> None:
    graph = expand(loads_spec(SMALL))
    bare = export(graph, tmp_path / "bare", no_weights=True)
    full = export(graph, tmp_path / "full", seed=3)
    assert sorted(path.name for path in (tmp_path / "bare").iterdir()) == ["archc.json", "model.onnx"]
    assert (tmp_path / "bare" / "model.onnx").read_bytes() == (tmp_path / "full" / "model.onnx").read_bytes()
    size = (tmp_path / "full" / "model.onnx.data").stat().st_size
    assert any(f"model.onnx.data is not written: {size:,} bytes" in note for note in bare.notes)
    assert not any("not written" in note for note in full.notes)
    assert any(line.startswith("not run: the weights are not in the file") or "twin" in line for line in bare.checks)


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "deepseek-v3", "kimi-linear", "qwen3-next", "phi-3-longrope"])
def test_a_file_is_the_same_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    graph = expand(load_spec(f"tiny-{name}", ()))
    export(graph, tmp_path / "large", check=False)
    monkeypatch.setattr(streaming, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(streaming, "_MOST_PASSES", 1000)
    monkeypatch.setattr(transforms, "_CHUNK_BYTES", 3000)
    export(graph, tmp_path / "small", check=False)
    data = [(tmp_path / size / "model.onnx.data").read_bytes() for size in ("large", "small")]
    assert data[0] == data[1]


def test_weights_and_no_weights_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ArchcError, match=r"either weights .* or no weights can be asked for, not both"):
        export(expand(loads_spec(SMALL)), tmp_path / "out", weights=tmp_path, no_weights=True)
    assert not (tmp_path / "out").exists()


BARE = f"""
import sys
from archc.cli.main import archc
{PEAK}
try:
    archc(sys.argv[1:])
finally:
    print(peak(), file=sys.stderr)
"""


@on_linux
@pytest.mark.parametrize("name", ["kimi-k2", "llama-3.1-405b", "llama-4-scout"])
def test_graphs_of_a_trillion_parameters_or_ten_million_positions_take_seconds(tmp_path: Path, name: str) -> None:
    arguments = ["export", name, "-o", str(tmp_path / "out"), "--no-weights", "--dtype", "bf16"]
    ran = subprocess.run(
        [sys.executable, "-c", BARE, *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    assert int(ran.stderr.split()[-1]) < 512 * MIB
    assert (tmp_path / "out" / "model.onnx").stat().st_size < 4 * MIB
    assert not (tmp_path / "out" / "model.onnx.data").exists()


def test_weights_begin_at_multiples_of_64_bytes_and_large_ones_at_pages(tmp_path: Path) -> None:
    text = MIXTURE.format(vocab=601, width=1024, head=8, wide=300, inner=16, tied="true")
    export(expand(loads_spec(text)), tmp_path / "out", dtype="float32", check=False)
    proto = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    places: list[tuple[int, int]] = []
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            offset, length = int(entries["offset"]), int(entries["length"])
            places.append((offset, length))
            assert offset % (4096 if length > MIB else 64) == 0
    assert any(length > MIB for _, length in places)
    # One behind the other, with less than a page between two: nothing lies there twice.
    assert all(0 <= after - before - length < 4096 for (before, length), (after, _) in pairwise(sorted(places)))
    assert (tmp_path / "out" / "model.onnx.data").stat().st_size == sum(max(places))


def test_a_tied_table_is_one_initializer(tmp_path: Path) -> None:
    for tied, count in (("true", 1), ("false", 2)):
        text = MIXTURE.format(vocab=61, width=32, head=8, wide=48, inner=16, tied=tied)
        export(expand(loads_spec(text)), tmp_path / tied, dtype="float32", check=False)
        proto = onnx.load(tmp_path / tied / "model.onnx", load_external_data=False)
        assert sum(sorted(tensor.dims) == [32, 61] for tensor in proto.graph.initializer) == count


def test_the_same_bytes_from_one_file_and_from_shards(tmp_path: Path) -> None:
    graph = expand(loads_spec(SMALL))
    tensors = {name: draw(*param.shape, seed=number) for number, (name, param) in enumerate(graph.params().items())}
    save_file(tensors, tmp_path / "one.safetensors")
    names, shards = sorted(tensors), tmp_path / "shards"
    shards.mkdir()
    weight_map: dict[str, str] = {}
    for number in range(3):
        # A header whose length is no multiple of 8 leaves tensors at odd addresses.
        save_file(
            {name: tensors[name] for name in names[number::3]}, shards / f"{number}.safetensors", {"x": "y" * number}
        )
        weight_map |= dict.fromkeys(names[number::3], f"{number}.safetensors")
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for source in ("one.safetensors", "shards"):
        export(graph, tmp_path / f"from {source}", weights=tmp_path / source, check=False)
    data = [(tmp_path / f"from {source}" / "model.onnx.data").read_bytes() for source in ("one.safetensors", "shards")]
    assert data[0] == data[1]
    proto = onnx.load(tmp_path / "from shards" / "model.onnx")
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    gate, up = (tensors[f"layers.1.ffn.experts.{role}_proj"].astype(np.float16) for role in ("gate", "up"))
    found = next(array for name, array in stored.items() if name.endswith("gate_up"))
    assert np.array_equal(found[:, 0::2], gate)
    assert np.array_equal(found[:, 1::2], up)
