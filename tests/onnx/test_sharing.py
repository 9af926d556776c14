"""Files whose layers read keys and values of an earlier one: torch's outputs, one cache, no copies between devices."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import onnx_ir as ir

from archc.errors import ArchcError
from archc.expansion import expand
from archc.spec.load import loads_spec
from archc.testing import check_kind
from archc_exporters.onnx.contract import bindable_to_one_buffer
from archc_exporters.onnx.export import export
from archc_exporters.onnx.placement.check import require_provider
from tests.plugins.test_sharing import shared

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

FORMS = {
    "plain": shared(),
    "sinks and a soft cap": shared("sink_logits: true, attn_logit_softcapping: 2.0"),
    "sinks": shared("sink_logits: true"),
    "slopes": shared(position="alibi"),
    "chunks": shared().replace("sliding_window", "attention_chunk_size"),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_a_file_whose_layers_read_others_gives_torchs_outputs(text):
    assert check_kind("mixer.gqa", spec=text).checks[-1].startswith("ONNX = torch")


def test_readers_have_no_caches_and_the_others_may_lie_in_one_buffer(tmp_path: Path):
    export(expand(loads_spec(shared(pattern="own full near far"))), tmp_path / "f", provider="cpu", dtype="float32")
    places = dict(bindable_to_one_buffer(ir.load(tmp_path / "f" / "model.onnx")))
    assert places == {f"past_key_values.{layer}.{role}": True for layer in (0, 1) for role in ("key", "value")}


def test_a_reader_runs_on_cuda_without_a_copy_to_the_host(tmp_path: Path):
    text = shared(pattern="own full near far").replace("head_dim: 8", "head_dim: 16")
    report = export(expand(loads_spec(text)), tmp_path / "f", provider="cuda", dtype="float16")
    assert require_provider(tmp_path / "f" / "model.onnx", "cuda").source
    assert "these are an earlier layer's" in str(report.to_json())


def test_rows_that_a_kernel_keeps_for_itself_are_refused(tmp_path: Path):
    graph = expand(loads_spec(shared(pattern="own near")))
    with pytest.raises(ArchcError, match="later layers read its keys and values, and its kernel keeps the window"):
        export(graph, tmp_path / "window", provider="cuda", dtype="float16", sliding_window_cache=True)
    graph = expand(loads_spec(shared(pattern="full far")))
    with pytest.raises(ArchcError, match="later layers read its keys and values, which are kept as int8"):
        export(graph, tmp_path / "rounded", provider="cuda", dtype="float16", kv_cache_dtype="int8")
