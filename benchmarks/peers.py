"""The models that archc and transformers are compared on, with equal weights, and a timer that interleaves them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from torch import nn

import archc

SMALL_LLAMA = """
spec_version: 1
name: small-llama
tokenizer: {kind: external, vocab_size: 32000}
embedding: {hidden_size: 768, tie_word_embeddings: true}
position: {kind: rope, theta: 10000.0}
norm: {kind: rms_norm, eps: 1e-5}
max_position_embeddings: 4096
mixers: {attn: {kind: gqa, num_heads: 12, num_kv_heads: 4, head_dim: 64}}
ffns: {mlp: {kind: swiglu, intermediate_size: 2048}}
stack: {num_layers: 12, block: pre_norm, mixer: attn, ffn: mlp}
"""

SMALL_KIMI = """
spec_version: 1
name: small-kimi
tokenizer: {kind: external, vocab_size: 32000}
embedding: {hidden_size: 512, tie_word_embeddings: false}
position: none
norm: {kind: rms_norm, eps: 1e-5}
max_position_embeddings: 8192
mixers:
  kda: {kind: kda, num_heads: 8, head_dim: 64}
  mla: {kind: mla, num_heads: 8, kv_lora_rank: 128, qk_nope_head_dim: 64, qk_rope_head_dim: 32, v_head_dim: 64}
ffns: {mlp: {kind: swiglu, intermediate_size: 1408}}
stack: {num_layers: 8, block: pre_norm, mixer: (kda*3 mla)*, ffn: mlp}
"""


def archc_model(text: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The archc model of a spec on the CPU, seeded."""
    return archc.build(archc.loads_spec(text), device="cpu", dtype=dtype, seed=0)


def llama_peer() -> nn.Module:
    """transformers' model of SMALL_LLAMA, with its fused attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def kimi_peer() -> nn.Module:
    """transformers' model of SMALL_KIMI, on its torch fallback for the delta rule."""
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2
    config = KimiLinearConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        q_lora_rank=None,
        kv_lora_rank=128,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        layer_types=kinds,
        mlp_layer_types=["dense"] * 8,
        linear_num_heads=8,
        linear_head_dim=64,
        linear_conv_kernel_dim=4,
        max_position_embeddings=8192,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return KimiLinearForCausalLM(config)


def interleaved(runs: dict[str, Callable[[], Any]], *, rounds: int, warm: int = 1) -> dict[str, float]:
    """Median seconds of each run, the runs taking turns and the order rotating, so that a slow minute hits all of them."""
    for _ in range(warm):
        for run in runs.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            begin = time.perf_counter()
            runs[name]()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def show(title: str, rows: list[tuple[str, str, str]]) -> None:
    """A table of (what, measured, target)."""
    print(f"\n{title}")
    width = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width[i]) for i, cell in enumerate(row)).rstrip())
