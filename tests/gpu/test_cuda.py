"""Exports on a GPU: values against torch, and every node there. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.onnx, pytest.mark.torch]
pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from archc_exporters.runtime.provider import cuda_devices  # noqa: E402
from tests.gpu import values  # noqa: E402


@pytest.mark.skipif(not cuda_devices(), reason="no CUDA device that onnxruntime can use")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", values.FAMILIES)
def test_the_file_is_torch_up_to_rounding_and_stays_on_the_gpu(family: str, dtype: str, tmp_path: Path) -> None:
    found = values.check(family, dtype, "cuda", tmp_path)
    assert "session" in found.source, found.source
    assert found.is_good, found
    assert not found.memcpy, found
