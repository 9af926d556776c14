"""The same on a GPU: caches and logits that live there, chunks fed row by row, numbers near the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from archc_exporters.runtime.model import load
from archc_exporters.runtime.prefill import prefill
from archc_exporters.runtime.provider import cuda_devices
from tests.runtime.conftest import FAMILIES

pytestmark = [
    pytest.mark.onnx,
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_devices() == 0, reason="no CUDA device"),
]


@pytest.mark.parametrize("chunk", [512, 8])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_on_cuda_are_near_those_of_the_cpu(
    ready: Callable[..., Any], prompts: list[list[int]], name: str, chunk: int
) -> None:
    folder = ready(name, "float16", provider="cuda").folder
    found: dict[str, list[np.ndarray]] = {}
    for provider in ("cpu", "cuda"):
        model = load(folder, provider=provider)
        engine = model.engine(len(prompts), 32)
        steps = [prefill(engine, prompts, model.contract, chunk=chunk)]
        for number in range(6):
            logits = engine.step(np.full((len(prompts), 1), number))
            assert logits is not None
            steps.append(logits.copy())
        found[provider] = [step.astype(np.float32) for step in steps]
    for cpu, cuda in zip(found["cpu"], found["cuda"], strict=True):
        assert np.abs(cpu - cuda).max() < 0.05 * np.abs(cpu).max()


def test_bfloat16_generates_on_cuda(ready: Callable[..., Any], prompts: list[list[int]]) -> None:
    model = load(ready("llama", "bfloat16", provider="cuda").folder)
    assert model.provider == "cuda"
    found = model.generate(prompts, max_new_tokens=8, temperature=0.7, top_k=20)
    assert [len(ids) for ids in found.ids] == [8] * len(prompts)
