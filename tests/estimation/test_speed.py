"""An estimate is quick and needs nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from archc.estimation.estimate import estimate
from archc.spec.load import load_spec

ROOT = Path(__file__).resolve().parents[2]


def parameters(name: str, num_layers: int) -> int:
    return estimate(load_spec(name, [f"stack.num_layers={num_layers}"])).parameters.total


@pytest.mark.parametrize(
    ("name", "few", "more", "many"), [("llama-3-8b", 1, 2, 10000), ("kimi-linear-48b-a3b", 7, 11, 9999)]
)
def test_ten_thousand_layers_take_less_than_a_second(name: str, few: int, more: int, many: int):
    # In a process of its own: here the collector would walk over everything that other tests have left behind.
    code = (
        "import sys, time\n"
        "from tests.estimation.test_speed import parameters\n"
        "start = time.process_time()\n"
        "print(parameters(sys.argv[1], int(sys.argv[2])), time.process_time() - start)"
    )
    words = [sys.executable, "-c", code, name, str(many)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    total, seconds = done.stdout.split()
    assert float(seconds) < 1
    period = parameters(name, more) - parameters(name, few)
    assert int(total) == parameters(name, few) + (many - few) // (more - few) * period


def test_an_estimate_loads_no_torch_and_no_numpy():
    code = (
        "import sys\n"
        "from archc.estimation.estimate import estimate\n"
        "estimate('kimi-linear-48b-a3b').to_json()\n"
        "print([m for m in ('torch', 'numpy', 'onnx', 'onnxruntime', 'rich', 'click', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
