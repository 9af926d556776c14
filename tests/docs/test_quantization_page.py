"""The page about integer weights and rounded caches: its command runs, its layers are those of a spec, its options exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from archc.expansion import expand
from archc.spec.load import load_spec, loads_spec

ROOT = Path(__file__).parents[2]
PAGE = "quantization.md"
SPEC = """
spec_version: 1
name: page
tokenizer: {kind: external, vocab_size: 300}
embedding: {hidden_size: 128, tie_word_embeddings: true}
norm: {kind: rms_norm, eps: 1e-5}
position: {kind: rope, theta: 10000.0}
max_position_embeddings: 64
mixers:
  full: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 32}
ffns: {mlp: {kind: swiglu, intermediate_size: 256}}
stack: {num_layers: 1, block: pre_norm, mixer: full, ffn: mlp}
"""
pytestmark = pytest.mark.onnx


def test_what_the_page_prints_runs(
    blocks: Callable[[str, str], list[str]], run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    from archc_exporters.onnx.sources import RandomWeights
    from archc_exporters.onnx.weights import DTYPES

    (tmp_path / "page.yaml").write_text(SPEC)
    (tmp_path / "ids.jsonl").write_text("[1, 2, 3]\n[299]\n")
    (tmp_path / "weights").mkdir()
    source = RandomWeights(0, DTYPES["float32"])
    params = expand(load_spec(str(tmp_path / "page.yaml"))).params()
    save_file({name: source.read(name, p) for name, p in params.items()}, tmp_path / "weights" / "model.safetensors")
    (line,) = blocks(PAGE, "console")[0].splitlines()
    done = run(line.removeprefix("$ ").replace("SPEC", "page.yaml").replace("DIR", "weights"), tmp_path)
    assert done.returncode == 0, done.stderr
    for words in (
        "weights of 4 bits, blocks of 32, symmetric",
        "5 MatMulNBits",
        "logits of 96 random tokens are off by",
        "2 caches are rounded, one step a channel, for the largest key or value of 4 tokens",
    ):
        assert words in done.stdout


def test_the_layers_of_the_page_are_those_of_a_spec(blocks: Callable[[str, str], list[str]]) -> None:
    (mixers,) = blocks(PAGE, "yaml")
    start, end = SPEC.index("mixers:"), SPEC.index("ffns:")
    graph = expand(loads_spec(SPEC[:start] + mixers + SPEC[end:]))
    assert {state.dtype for state in graph.states().values()} == {"int8"}


def test_the_options_of_the_page_exist() -> None:
    from archc.cli.export import command

    text = (ROOT / "docs" / PAGE).read_text("utf-8")
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = set(re.findall(r"--[a-z][a-z-]+", text))
    assert {"--quant-zero-points", "--kv-cache-dtype", "--calibration"} <= used <= known
