"""A malformed file is found without running it, and every fault is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from archc.errors import CheckFailedError
from archc_exporters.onnx.structure import check_structure

pytestmark = [pytest.mark.onnx, pytest.mark.torch]


@pytest.fixture
def folder(exported: Callable[..., Any], tmp_path: Path) -> Path:
    out = tmp_path / "out"
    shutil.copytree(exported("llama", "float32").folder, out)
    return out


def changed(folder: Path, change: Callable[[ModelProto], None]) -> Path:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    change(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def node(model: ModelProto, op_type: str) -> Any:
    return next(node for node in model.graph.node if node.op_type == op_type)


def outside(model: ModelProto) -> list[TensorProto]:
    return [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]


def entry(tensor: TensorProto, key: str) -> Any:
    return next(entry for entry in tensor.external_data if entry.key == key)


def unknown_op(model: ModelProto) -> None:
    node(model, "GroupQueryAttention").op_type = "GroupQueryAttentionOfTomorrow"


def op_of_a_later_opset(model: ModelProto) -> None:
    found = node(model, "RMSNormalization")
    found.op_type, found.domain = "LinearAttention", ""


def attribute_of_tomorrow(model: ModelProto) -> None:
    node(model, "GroupQueryAttention").attribute.append(helper.make_attribute("query_seqlens", 1))


def too_many_inputs(model: ModelProto) -> None:
    node(model, "GroupQueryAttention").input.extend(["input_ids"] * 20)


def twice_named_nodes(model: ModelProto) -> None:
    model.graph.node[1].name = model.graph.node[0].name


def fixed_batch(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def fixed_logits(model: ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5


def cache_of_another_dtype(model: ModelProto) -> None:
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.FLOAT16


def cache_of_another_shape(model: ModelProto) -> None:
    model.graph.output[1].type.tensor_type.shape.dim[3].dim_value = 9


def missing_present(model: ModelProto) -> None:
    del model.graph.output[1]


def short_weight(model: ModelProto) -> None:
    length = entry(outside(model)[0], "length")
    length.value = str(int(length.value) - 4)


def shared_bytes(model: ModelProto) -> None:
    first, second, *_ = outside(model)
    entry(second, "offset").value = entry(first, "offset").value


FAULTS = [
    (unknown_op, r"com\.microsoft\.GroupQueryAttentionOfTomorrow is no op of opset 1 of com\.microsoft"),
    (op_of_a_later_opset, r"LinearAttention is no op of opset 24 of ai\.onnx|No Op registered for LinearAttention"),
    (attribute_of_tomorrow, "GroupQueryAttention has no attribute query_seqlens"),
    (too_many_inputs, "GroupQueryAttention takes 16 inputs, not"),
    (twice_named_nodes, "2 nodes are called '"),
    (fixed_batch, r"input_ids is \[2, 'seq'\], not \['batch', 'seq'\]"),
    (fixed_logits, r"logits is \['batch', 5, 61\]; its second dimension should be seq"),
    (cache_of_another_dtype, r"past_key_values\.0\.key and present\.0\.key differ in dtype"),
    (cache_of_another_shape, r"past_key_values\.0\.key is .*, present\.0\.key .*9\]"),
    (missing_present, r"past_key_values\.0\.key has no output present\.0\.key"),
    (short_weight, r"has \d+ bytes of data, not \d+"),
    (shared_bytes, r"share bytes of model\.onnx\.data"),
]


@pytest.mark.parametrize(("change", "said"), FAULTS, ids=[change.__name__.replace("_", " ") for change, _ in FAULTS])
def test_a_fault_is_named(folder: Path, change: Callable[[ModelProto], None], said: str) -> None:
    check_structure(folder / "model.onnx")
    with pytest.raises(CheckFailedError, match=said):
        check_structure(changed(folder, change))


def test_all_faults_are_named_at_once(folder: Path) -> None:
    def both(model: ModelProto) -> None:
        fixed_batch(model)
        missing_present(model)

    with pytest.raises(CheckFailedError) as caught:
        check_structure(changed(folder, both))
    assert "input_ids is [2, 'seq']" in str(caught.value)
    assert "has no output present.0.key" in str(caught.value)


def test_data_that_is_cut_off_is_found(folder: Path) -> None:
    data = folder / "model.onnx.data"
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - 1)
    with pytest.raises(CheckFailedError, match=r"ends behind the end of model\.onnx\.data"):
        check_structure(folder / "model.onnx")


def test_data_may_be_absent_where_that_is_said(folder: Path) -> None:
    (folder / "model.onnx.data").unlink()
    with pytest.raises(CheckFailedError, match=r"onnx\.checker refuses the file"):
        check_structure(folder / "model.onnx")
    assert "their bytes are absent" in check_structure(folder / "model.onnx", has_data=False)
