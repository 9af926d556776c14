"""What runs on a GPU, run on the CPU first: the comparison itself, and the script that makes it there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.onnx, pytest.mark.torch]
pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from tests.gpu import values  # noqa: E402


@pytest.mark.parametrize(
    ("family", "dtype"), [*((name, "float16") for name in values.FAMILIES), ("kimi-linear", "float32")]
)
def test_the_comparison_passes_on_the_cpu(family: str, dtype: str, tmp_path: Path) -> None:
    found = values.check(family, dtype, "cpu", tmp_path)
    assert found.is_good, found


def test_the_comparison_sees_another_model(tmp_path: Path) -> None:
    found = values.check("llama", "float32", "cpu", tmp_path)
    ids = np.random.default_rng(4).integers(0, 256, (2, values.TOKENS))
    ours = values.run_file(tmp_path / "out", "cpu", ids)
    others = values.run_file(tmp_path / "out", "cpu", (ids + 1) % 256)
    assert values.relative(ours, others) > 1000 * found.bound
