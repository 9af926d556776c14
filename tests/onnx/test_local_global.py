"""Files of windows and global tokens, of blocks, and of disentangled positions: wholly on the GPU, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from archc.errors import GraphError
from archc.expansion import expand
from archc.spec.load import loads_spec

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from archc_exporters.onnx.export import export

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

SPEC = """
spec_version: 1
name: encoder
max_position_embeddings: 64
tokenizer: {kind: external, vocab_size: 40}
embedding: {hidden_size: 32, norm: true}
position: POSITION
norm: {kind: layer_norm, eps: 1e-5}
mixers:
  attn: {num_heads: 4, head_dim: 8, qkv_bias: true, MIXER}
ffns:
  mlp: {kind: mlp, intermediate_size: 48, activation: gelu, bias: true}
encoder: {num_layers: 2, block: post_norm, mixer: attn, ffn: mlp}
"""
FORMS = {
    "windows": ("learned", "kind: local_global, attention_window: 6, global_projections: true"),
    "windows and three global tokens": ("learned", "kind: local_global, attention_window: 4, global_tokens: 3"),
    "blocks": ("learned", "kind: local_global, block_size: 2, num_random_blocks: 1"),
    "disentangled": ("{kind: disentangled, max_relative_positions: 8}", "kind: gqa, num_kv_heads: 4, k_bias: false"),
}


def text_of(name: str, more: str = "") -> str:
    position, mixer = FORMS[name]
    return SPEC.replace("POSITION", position).replace("MIXER", mixer + more)


@pytest.mark.parametrize("name", FORMS)
def test_nothing_leaves_the_gpu_and_nothing_is_copied(name: str, tmp_path: Path) -> None:
    report = export(expand(loads_spec(text_of(name))), tmp_path / "out", check_provider="cuda", no_weights=True)
    assert report.placement is not None
    assert not report.placement.memcpy
    assert not report.placement.away


def test_drawn_blocks_are_refused_since_a_file_does_not_know_how_many_there_are(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"random blocks are drawn .* export without random_seed"):
        export(
            expand(loads_spec(text_of("blocks", ", random_seed: 3"))), tmp_path / "out", provider="cpu", dtype="float32"
        )
    assert not (tmp_path / "out").exists()
