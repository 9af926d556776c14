"""Linear kinds that see a whole text, as files: torch's numbers under padding on either side, and all of it on CUDA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ort = pytest.importorskip("onnxruntime")

from safetensors.torch import save_file  # noqa: E402

from archc.expansion import expand  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.testing.placing import spec_text  # noqa: E402
from archc.torch_backend.build import build  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from archc_exporters.onnx.placement.check import require_provider  # noqa: E402

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

LENGTH = 13
KINDS = {
    **{
        f"linformer, sharing {sharing}": ("linformer", {"projected_length": 5, "sharing": sharing})
        for sharing in ("none", "headwise", "key_value", "layerwise")
    },
    "linear": ("linear", {}),
    "performer": ("performer", {"num_features": 7}),
}


def graph_of(name):
    kind, keys = KINDS[name]
    around = {"position": "learned", "encoder": {}}
    return expand(loads_spec(spec_text("mixer", kind, {"num_heads": 2, "head_dim": 8, **keys}, around)))


@pytest.mark.parametrize("name", KINDS)
def test_a_file_gives_the_numbers_of_torch_under_padding_on_either_side(name, tmp_path: Path):
    graph = graph_of(name)
    model, draw = build(graph, device="cpu", seed=0), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) * 1.5 * weight.shape[-1] ** -0.5)
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, tmp_path / "w.safetensors")
    out, weights = tmp_path / "out", tmp_path / "w.safetensors"
    export(graph, out, provider="cpu", dtype="float32", weights=weights)
    ids = torch.randint(0, 40, (3, LENGTH), generator=draw)
    mask = torch.ones_like(ids)
    mask[0, 9:], mask[1, :3] = 0, 0
    feeds = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    (found,) = ort.InferenceSession(out / "model.onnx").run(None, feeds)
    with torch.no_grad():
        want = model(ids, attention_mask=mask).numpy()
        assert not np.allclose(model(ids).numpy()[0, 0], want[0, 0], atol=1e-3)
    error = np.abs(found - want) * mask.numpy()[..., None]
    assert error.max() < 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("name", ["linformer, sharing headwise", "linear", "performer"])
def test_every_node_has_a_place_on_cuda_in_half_precision(name, tmp_path: Path):
    export(graph_of(name), tmp_path / "out", provider="cuda", dtype="float16")
    assert require_provider(tmp_path / "out" / "model.onnx", "cuda").source
