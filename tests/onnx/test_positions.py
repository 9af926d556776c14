"""Positions in files: slopes on the scores, learned and sinusoidal tables, against torch and by what is in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archc.errors import GraphError
from archc.expansion import expand
from archc.spec.load import loads_spec
from archc_exporters.onnx.export import export
from tests.onnx.conftest import ARCHITECTURES, BASE
from tests.onnx.test_values import WAYS, ragged_error, uniform_error

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

NAMES = ("slopes", "learned positions", "sinusoidal positions")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_the_file_equals_torch(exported: Callable[..., Any], name: str, way: str) -> None:
    assert uniform_error(exported(name, "float32"), *WAYS[way]) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_different_lengths_equal_torch(exported: Callable[..., Any], name: str) -> None:
    assert ragged_error(exported(name, "float32")) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_float16_is_torch_up_to_rounding(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float16")
    assert max(uniform_error(model, *WAYS["chunks"]), ragged_error(model)) < 2e-2


def test_the_report_says_why_rows_under_slopes_are_padded(exported: Callable[..., Any]) -> None:
    forms = " ".join(choice.form for choice in exported("slopes", "float32").report.choices)
    assert (
        "slopes and causality in one float mask, rows a multiple of 8, because CUDA's memory-efficient kernel" in forms
    )


def test_rows_before_a_learned_table_stay_out_of_the_file(exported: Callable[..., Any]) -> None:
    import onnx

    proto = onnx.load(exported("learned positions", "float32").folder / "model.onnx", load_external_data=False)
    shapes = {tensor.name: list(tensor.dims) for tensor in proto.graph.initializer}
    assert shapes["embed_positions.weight.used"] == [40, 32]


def test_a_file_for_more_tokens_than_learned_positions_is_refused(tmp_path: Path) -> None:
    graph = expand(loads_spec(BASE.format(name="learned") + ARCHITECTURES["learned positions"]))
    with pytest.raises(GraphError, match="learned up to max_position_embeddings, 40; max_model_len should be at most"):
        export(graph, tmp_path / "out", max_model_len=41)
