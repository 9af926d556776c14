"""Tiny transformers models and archc's of the same weights; a small one with a tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402

PADDED = """
spec_version: 1
name: padded
dtype: float32
tokenizer: {kind: bytes, eos_token_id: 256}
norm: {kind: rms_norm, eps: 1e-5}
max_position_embeddings: 64
position: {kind: rope, theta: 10000.0}
embedding: {hidden_size: 32, tie_word_embeddings: false, pad_vocab_to_multiple_of: 64}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}
ffns: {mlp: {kind: swiglu, intermediate_size: 48}}
stack: {num_layers: 2, block: pre_norm, mixer: attn, ffn: mlp}
"""
"""257 ids in a table of 320 rows."""


@pytest.fixture(scope="session")
def padded() -> Any:
    """A model whose table has more rows than its tokenizer ids, and whose largest logits are always of such rows."""
    model = archc.build(archc.loads_spec(PADDED), device="cpu", seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
            if name == "lm_head.weight":
                parameter[257:] *= 100
    return model


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any]]:
    """Family name -> (the oracle, archc's model of its weights); made once."""
    pytest.importorskip("transformers", minversion="5.24")
    from safetensors.torch import save_file

    from archc.expansion import expand
    from tests.parity.oracle import oracle_of
    from tests.parity.weights import to_archc

    @cache
    def get(name: str) -> tuple[Any, Any]:
        oracle = oracle_of(name)
        spec = archc.loads_spec(oracle.family.spec)
        shapes = {key: param.shape for key, param in expand(spec).params().items()}
        file = tmp_path_factory.mktemp(name) / "model.safetensors"
        save_file(to_archc(oracle.state(), shapes, family=name, tied=oracle.tied()), file)
        return oracle, archc.load_weights(archc.build(spec, device="cpu", dtype="float32"), file).eval()

    return get
