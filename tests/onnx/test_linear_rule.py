"""States that no CUDA device holds for a prompt, in pieces; and linear kinds in the files that they become."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import onnx_ir as ir

from archc.expansion import expand
from archc.spec.load import loads_spec
from archc.testing import check_kind
from archc.testing.placing import spec_text
from archc_exporters.onnx import linear_rule
from archc_exporters.onnx.export import export
from archc_exporters.onnx.limits import value_pieces
from archc_exporters.onnx.placement.check import require_provider
from archc_exporters.onnx.target import Target

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

KINDS = {
    "gla": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 8},
    "retnet": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 8},
    "linear": {"num_heads": 2, "head_dim": 8},
    "performer": {"num_heads": 2, "head_dim": 8, "num_features": 6},
    "kda": {"num_heads": 2, "head_dim": 8},
    "gated_deltanet": {"num_key_heads": 1, "num_value_heads": 2, "key_head_dim": 8, "value_head_dim": 6},
    "mamba2": {"num_heads": 4, "head_dim": 6, "state_size": 8, "n_groups": 2},
}
CUDA = Target(provider="cuda", dtype="float16")


@pytest.mark.parametrize("name", KINDS)
def test_a_state_in_pieces_gives_the_same_outputs_and_the_same_state(name, monkeypatch):
    monkeypatch.setattr(linear_rule, "value_pieces", lambda key_dim, value_dim, target: 3 if value_dim % 2 else 2)
    said = check_kind(f"mixer.{name}", KINDS[name]).checks[-1]
    assert said.startswith("ONNX = torch")


@pytest.mark.parametrize(
    ("key_dim", "value_dim", "pieces"),
    [(64, 512, 1), (128, 128, 1), (160, 160, 1), (192, 192, 1), (256, 256, 4), (256, 512, 8), (1024, 65, 5)],
)
def test_a_head_is_cut_only_where_no_device_bears_it_and_then_as_little_as_all_bear(key_dim, value_dim, pieces):
    assert value_pieces(key_dim, value_dim, CUDA) == pieces
    assert value_pieces(key_dim, value_dim, Target(provider="cpu", dtype="float32")) == 1


def test_the_heads_of_the_published_retnet_and_gla_run_on_cuda_in_eight_pieces(tmp_path: Path):
    for name in ("retnet", "gla"):
        text = spec_text("mixer", name, {"num_heads": 2, "key_head_dim": 256, "value_head_dim": 512})
        report = export(expand(loads_spec(text)), tmp_path / name, provider="cuda", dtype="float16")
        assert any("256 x 512 are worked on in 8 pieces of 64 values" in note for note in report.notes)
        model = ir.load(tmp_path / name / "model.onnx")
        assert require_provider(tmp_path / name / "model.onnx", "cuda").source
        (rule, *_) = [node for node in model.graph if node.op_type == "LinearAttention"]
        assert (rule.attributes["q_num_heads"].value, rule.attributes["kv_num_heads"].value) == (2, 16)
        states = [value for value in model.graph.inputs if str(value.name).endswith("recurrent_state")]
        assert {tuple(map(str, state.shape or ())) for state in states} == {("batch", "2", "256", "512")}


def test_what_seeds_stand_for_is_in_the_file_and_not_in_the_lockfile(tmp_path: Path):
    from archc.graph.lockfile import to_text
    from archc.ops.random_features import directions

    graph = expand(loads_spec(spec_text("mixer", "performer", {"num_heads": 2, "head_dim": 8, "num_features": 6})))
    export(graph, tmp_path / "out", provider="cpu", dtype="float32")
    model = ir.load(tmp_path / "out" / "model.onnx")
    held = [value.const_value for value in model.graph.initializers.values() if tuple(value.shape or ()) == (8, 6)]
    (tensor,) = [each for each in held if each is not None]
    for found, row in zip(tensor.numpy().T.tolist(), directions(6, 8, 0), strict=True):
        assert found == pytest.approx(row, abs=1e-6)
    assert f"{directions(6, 8, 0)[0][0]:.6f}"[:7] not in to_text(graph)
