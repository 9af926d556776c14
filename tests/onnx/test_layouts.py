"""onnxruntime against torch for every residual layout, norm, plain feed-forward and rope scaling by length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

pytest.importorskip("onnxruntime")

import onnx  # noqa: E402

from tests.onnx.layouts import LAYOUTS  # noqa: E402
from tests.onnx.test_values import WAYS, ragged_error, uniform_error  # noqa: E402

FLOAT32_ERROR, FLOAT16_ERROR = 1e-5, 3e-2
"""Largest difference of outputs that are about 4 large."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_file_equals_torch(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float32")
    assert max(uniform_error(model, *way) for way in WAYS.values()) < FLOAT32_ERROR


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_different_lengths_equal_torch(exported: Callable[..., Any], name: str) -> None:
    assert ragged_error(exported(name, "float32")) < FLOAT32_ERROR


@pytest.mark.parametrize("name", LAYOUTS)
def test_float16_is_torch_up_to_rounding(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float16")
    assert max(*(uniform_error(model, *way) for way in WAYS.values()), ragged_error(model)) < FLOAT16_ERROR


@pytest.mark.parametrize(
    ("name", "norm", "other"),
    [
        ("layer norms", "LayerNormalization", "RMSNormalization"),
        ("norms without biases", "LayerNormalization", "RMSNormalization"),
    ],
)
def test_a_layer_norm_is_one_node(exported: Callable[..., Any], name: str, norm: str, other: str) -> None:
    nodes = onnx.load(exported(name, "float32").folder / "model.onnx", load_external_data=False).graph.node
    kinds = [node.op_type for node in nodes]
    # Two norms a layer, but one under one parallel layout and four in the sandwich; queries and keys; and the last.
    assert kinds.count(norm) == 5 * 2 + 1 + 4 + 7 * 2 + 1
    assert other not in kinds
    assert {len(node.input) for node in nodes if node.op_type == norm} == {3 if name == "layer norms" else 2}


def test_a_file_without_norms_has_no_norm(exported: Callable[..., Any]) -> None:
    nodes = onnx.load(exported("no norms", "float32").folder / "model.onnx", load_external_data=False).graph.node
    assert not [node.op_type for node in nodes if "Norm" in node.op_type]
