"""Exports that write, and torch models of the same weights that say what they should write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from safetensors.torch import save_file  # noqa: E402

from archc.graph.graph import Graph  # noqa: E402
from archc.spec.resolved import resolved  # noqa: E402
from archc.torch_backend.build import build  # noqa: E402
from archc.torch_backend.weights import weights_of  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from archc_exporters.runtime.model import Model, load  # noqa: E402
from tests.onnx.conftest import VOCABULARY, draw, graph_of  # noqa: E402

FAMILIES = ("llama", "gpt-oss", "deepseek-v3", "kimi-linear", "qwen3-next")
PROMPT_LENGTHS = (19, 6, 11)
NEW_TOKENS = 12

BYTES = """
spec_version: 1
name: bytes
tokenizer: {kind: bytes, eos_token_id: 256}
norm: {kind: rms_norm, eps: 1e-5}
max_position_embeddings: 64
position: {kind: rope, theta: 10000.0}
embedding: {hidden_size: 32, tie_word_embeddings: false}
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 1, block: pre_norm, mixer: gqa, ffn: mlp}
"""


@dataclass(frozen=True)
class Ready:
    """An export, its graph, and torch's model of the same weights."""

    graph: Graph
    folder: Path
    judge: Any

    def load(self) -> Model:
        return load(self.folder, provider="cpu", threads=1)

    def greedy(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """What torch continues a prompt with, every token from a forward over all before it."""
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(new_tokens):
                logits = self.judge(torch.tensor([ids]))[0, -1, :VOCABULARY]
                ids.append(int(logits.argmax()))
        return ids[len(prompt) :]


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ready]:
    """(architecture, options of the export) -> its export for the CPU, made once."""

    @cache
    def judged(name: str, dtype: str) -> tuple[Graph, Any, Path]:
        graph = graph_of(name)
        model = build(graph, device="cpu", seed=0)
        draw(model, getattr(torch, dtype))
        path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in weights_of(model).items()}, path)
        return graph, model, path

    @cache
    def get(name: str, dtype: str = "float32", **options: Any) -> Ready:
        graph, model, weights = judged(name, dtype)
        options.setdefault("provider", "cpu")
        folder = tmp_path_factory.mktemp("ready") / "out"
        export(graph, folder, dtype=dtype, weights=weights, check=False, **options)
        return Ready(graph, folder, model)

    return get


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with a tokenizer of bytes, whose random weights write random bytes."""
    from archc.expansion import expand

    folder = tmp_path_factory.mktemp("writer")
    (folder / "spec.yaml").write_text(BYTES)
    spec = resolved(folder / "spec.yaml")
    export(expand(spec.spec), folder / "out", provider="cpu", dtype="float32", spec=spec, check=False, seed=1)
    return folder / "out"


@pytest.fixture
def prompts() -> list[list[int]]:
    """Prompts of different lengths, ids only."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
