"""Many specs and many layers are judged soon. Limits are of processor time, a multiple of what it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from archc.spec.resolved import resolved
from archc.spec.shipped import shipped_specs
from tests.timing import timed

COUNT = 200
LIMIT_EACH_S = 10 / 1000
LIMIT_DEEP_S = 2.0
START_S = 1.0
"""Every kind that a shipped spec uses is imported once."""


def seconds(folder: Path, *arguments: str) -> float:
    """Processor seconds of one command, start-up included, once modules are compiled, as for everyone but its first user."""
    command = [sys.executable, "-m", "archc", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, cwd=folder, capture_output=True, env=env)
    before = os.times()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
    after = os.times()
    assert done.returncode == 0, done.stderr
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_a_thousand_specs_would_take_less_than_ten_seconds(tmp_path: Path):
    texts = [resolved(path).to_yaml() for path in shipped_specs().values()]
    for number in range(COUNT):
        (tmp_path / f"{number}.yaml").write_text(texts[number % len(texts)])
    taken = seconds(tmp_path, "validate", "*.yaml")
    assert taken < START_S + COUNT * LIMIT_EACH_S


def test_ten_thousand_layers_are_validated_and_estimated_in_two_seconds(tmp_path: Path):
    deep = resolved("kimi-linear-48b-a3b", ["stack.num_layers=9999"]).to_yaml()
    (tmp_path / "deep.yaml").write_text(deep)
    assert seconds(tmp_path, "validate", "deep.yaml") < LIMIT_DEEP_S
    assert seconds(tmp_path, "estimate", "deep.yaml", "--json") < LIMIT_DEEP_S
    flat = resolved("tiny-llama", ["stack.num_layers=10000"]).to_yaml()
    (tmp_path / "flat.yaml").write_text(flat)
    assert seconds(tmp_path, "validate", "flat.yaml") < LIMIT_DEEP_S
    with timed() as taken:
        assert len(resolved(tmp_path / "flat.yaml").spec.schedule()) == 10_000
    assert taken.seconds < LIMIT_DEEP_S
