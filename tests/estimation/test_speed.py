"""An estimate is quick and needs nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from archc.estimation.estimate import estimate
from archc.spec.load import load_spec


def parameters(name: str, num_layers: int) -> int:
    return estimate(load_spec(name, [f"stack.num_layers={num_layers}"])).parameters.total


@pytest.mark.parametrize(
    ("name", "few", "more", "many"), [("llama-3-8b", 1, 2, 10000), ("kimi-linear-48b-a3b", 7, 11, 9999)]
)
def test_ten_thousand_layers_take_less_than_a_second(name: str, few: int, more: int, many: int):
    start = time.process_time()
    total = parameters(name, many)
    assert time.process_time() - start < 1
    period = parameters(name, more) - parameters(name, few)
    assert total == parameters(name, few) + (many - few) // (more - few) * period


def test_an_estimate_loads_no_torch_and_no_numpy():
    code = (
        "import sys\n"
        "from archc.estimation.estimate import estimate\n"
        "estimate('kimi-linear-48b-a3b').to_json()\n"
        "print([m for m in ('torch', 'numpy', 'onnx', 'onnxruntime', 'rich', 'click', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
