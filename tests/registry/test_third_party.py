"""A third party's package, with a mixer over an op of its own: everything works, and archc is not touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

ENTRY_POINTS = """\
[archc.mixer]
token_shift = archc_shift.kind:TokenShift
[archc.torch]
shift = archc_shift.torch_lowering:shift
[archc.onnx]
shift = archc_shift.onnx_lowering:shift
"""
SPEC = """\
spec_version: 1
name: shifted
tokenizer: {kind: external, vocab_size: 50}
embedding: {hidden_size: 16, tie_word_embeddings: true}
position: none
norm: {kind: rms_norm, eps: 1.0e-5}
mixers:
  shift: {kind: token_shift}
  attn: {kind: gqa, num_heads: 2, num_kv_heads: 1, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 24}
stack: {num_layers: 3, block: pre_norm, mixer: shift attn shift, ffn: mlp}
"""


@pytest.fixture
def shift(install, python, tmp_path):
    """Run code with archc_shift installed; ``SPEC`` and ``OUT`` are known to it."""
    shutil.copytree(Path(__file__).parent / "third_party" / "archc_shift", tmp_path / "archc_shift")
    install("archc-shift", ENTRY_POINTS, version="0.3")
    return lambda code: python(f"SPEC, OUT = {SPEC!r}, {str(tmp_path / 'out')!r}\n{code}")


def test_its_mixer_is_estimated_without_torch(shift):
    found = shift(
        "import json, sys\n"
        "from archc.estimation.estimate import estimate\n"
        "from archc.graph.lockfile import to_lock\n"
        "from archc.expansion import expand\n"
        "from archc.spec.load import loads_spec\n"
        "graph = expand(loads_spec(SPEC))\n"
        "found = estimate(graph, dtype='float32')\n"
        "print(json.dumps([found.parameters.total, to_lock(graph)['plugins']['mixer:token_shift'], 'torch' in sys.modules]))\n"
    )
    shifts, attention = 2 * (16 + 16 * 16), 16 * 8 * (2 + 1 + 1 + 2)
    total = 50 * 16 + shifts + attention + 3 * 3 * 16 * 24 + (2 * 3 + 1) * 16
    assert json.loads(found) == [total, ["archc-shift", "0.3"], False]


@pytest.mark.torch
def test_its_mixer_keeps_the_contract(shift):
    shift(
        "from archc.testing.contract import check_spec\n"
        "check_spec(SPEC)\n"
        "check_spec(SPEC.replace('shift}', 'shift, bias: true}'))\n"
    )


@pytest.mark.torch
@pytest.mark.onnx
def test_its_mixer_runs_on_onnxruntime_as_in_torch(shift):
    found = shift(
        """
import warnings
from pathlib import Path
import numpy, onnxruntime, torch
import archc
from archc import registry
from archc.expansion import as_graph
from archc.torch_backend.step import Step

graph = as_graph(archc.loads_spec(SPEC))
model = archc.build(graph, device="cpu", seed=0)
with torch.no_grad():
    for param in model.parameters():
        param.uniform_(-1, 1, generator=torch.Generator().manual_seed(param.numel()))
out, weights = Path(OUT) / "onnx", Path(OUT) / "model.safetensors"
archc.save_weights(model, weights)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    registry.load("exporter", "onnx")(graph, out, dtype="float32", weights=weights, max_model_len=16)
session = onnxruntime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
sizes = {"batch": 2, "capacity": 16}
caches = {
    i.name: numpy.zeros([sizes.get(d, d) for d in i.shape], numpy.float32)
    for i in session.get_inputs() if i.name.startswith("past_key_values.")
}
print(*sorted(caches))
cache = archc.new_cache(model, batch=2, max_model_len=16)
ids = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))
names = [o.name for o in session.get_outputs()]
for past, seq in ((0, 5), (5, 2), (7, 1)):
    with torch.no_grad():
        want = model(ids[:, past : past + seq], Step.at(past, seq), cache).numpy()
    lengths = {
        "input_ids": ids[:, past : past + seq].numpy(), "past_length": numpy.full(2, past), "seq_length": numpy.full(2, seq),
        "kv_length": numpy.full(2, past + seq), "max_length": numpy.array([past + seq]),
    }
    known = {i.name for i in session.get_inputs()}
    got = dict(zip(names, session.run(names, {k: v for k, v in {**lengths, **caches}.items() if k in known})))
    caches = {name: got[name.replace("past_key_values", "present")] for name in caches}
    numpy.testing.assert_allclose(got["logits"], want, rtol=0, atol=1e-4)
    assert numpy.abs(want).max() > 1
"""
    )
    assert found.split() == [
        "past_key_values.0.last",
        "past_key_values.1.key",
        "past_key_values.1.value",
        "past_key_values.2.last",
    ]


def test_a_spec_that_names_it_says_what_is_missing_where_it_is_not_installed():
    from archc.errors import SpecError
    from archc.spec.load import loads_spec

    with pytest.raises(
        SpecError, match=r"unknown mixer \(found token_shift\)\. Installed: .*gated_deltanet, .*gqa, .*kda, .*mla"
    ):
        loads_spec(SPEC)
