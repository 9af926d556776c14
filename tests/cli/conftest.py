"""What the tests of the command line share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from archc.cli.main import archc

BAD_SPEC = """\
spec_version: 1
name: bad
tokenizer: {kind: external, vocab_size: 1000}
embedding: {hidden_size: 64, tie_word_embeddings: true}
position: none
norm: {kind: rms_norm, eps: 1e-5}
mixers:
  attn: {kind: gqa, num_heads: 0x, num_kv_head: 2, head_dim: 16}
ffns:
  mlp: {kind: swiglu, intermediate_size: 128}
stack: {num_layers: 2, block: pre_norm, mixer: attn, ffn: mlp}
"""


@pytest.fixture
def bad_spec(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD_SPEC)
    return path


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run the command line in this process."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(archc, [str(argument) for argument in arguments], catch_exceptions=False)

    return run


@pytest.fixture
def shell() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``python -m archc`` in a process of its own."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "archc", *(str(argument) for argument in arguments)]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})

    return run
