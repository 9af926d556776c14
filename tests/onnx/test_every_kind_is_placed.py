"""The f16 file of every mixer, score, router, head and block runs wholly on CUDA: told by the registry, without a GPU.

``test_placement_agrees`` holds that what is told here is what onnxruntime-gpu does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from archc.expansion import expand
from archc.spec.load import loads_spec
from archc.testing.placing import spec_text
from archc_exporters.onnx.export import export
from archc_exporters.onnx.placement.check import check_provider
from tests.plugins.kinds import EXAMPLES

pytestmark = pytest.mark.onnx

KINDS = [
    kind
    for kind, given in EXAMPLES.items()
    if kind.partition(".")[0] in ("mixer", "score", "router", "head", "block", "position") and given.onnx is True
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_half_precision_file_of_a_kind_needs_no_cpu_and_no_copy(kind: str, tmp_path: Path):
    family, name = kind.split(".")
    graph = expand(loads_spec(spec_text(family, name, EXAMPLES[kind].keys, EXAMPLES[kind].around)))
    export(graph, tmp_path / "out", dtype="float16", check=False)
    for file in sorted((tmp_path / "out").glob("*.onnx")):
        found = check_provider(file, "cuda")
        assert (found.objections(), found.away, found.memcpy) == ([], (), ()), file.name
