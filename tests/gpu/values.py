"""Exports against torch on one provider: tiny models whose heads CUDA's kernels take, and how far the file is off.

The same functions run on the CPU, in an ordinary test, and on CUDA, in tests marked ``gpu`` and in ``benchmarks/gpu_smoke.py``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file

import archc
from archc.expansion import expand
from archc.spec.load import loads_spec
from archc.torch_backend.weights import weights_of
from archc_exporters.onnx.export import export
from archc_exporters.onnx.placement.check import check_provider
from archc_exporters.runtime.model import load

Provider = Literal["cpu", "cuda"]

BASE = """
spec_version: 1
name: {name}
tokenizer: {{kind: external, vocab_size: 256}}
embedding: {{hidden_size: 128, tie_word_embeddings: false}}
norm: {{kind: rms_norm, eps: 1e-5}}
max_position_embeddings: 128
"""
ROPE = "position: {kind: rope, theta: 10000.0}\n"

FAMILIES = {
    "llama": ROPE
    + """
mixers: {gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 64}}
ffns: {mlp: {kind: swiglu, intermediate_size: 192}}
stack: {num_layers: 2, block: pre_norm, mixer: gqa, ffn: mlp}
""",
    "gpt-oss": ROPE
    + """
mixers:
  far: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 64, qkv_bias: true, o_bias: true, sink_logits: true}
  near: {extends: far, sliding_window: 8}
ffns:
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    intermediate_size: 64
    router: {scoring_func: softmax, norm_topk_prob: true}
stack: {num_layers: 2, block: pre_norm, mixer: near far, ffn: moe}
""",
    "deepseek-v3": """
position: {kind: rope, theta: 10000.0, interleaved: true}
mixers:
  mla:
    {kind: mla, num_heads: 4, q_lora_rank: 64, kv_lora_rank: 64, qk_nope_head_dim: 64, qk_rope_head_dim: 32, v_head_dim: 64}
ffns:
  dense: {kind: swiglu, intermediate_size: 192}
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    num_shared_experts: 1
    intermediate_size: 64
    router:
      {scoring_func: sigmoid, correction_bias: true, norm_topk_prob: true, routed_scaling_factor: 2.5, n_group: 4,
       topk_group: 2}
stack: {num_layers: 2, block: pre_norm, mixer: mla, ffn: dense moe}
""",
    "kimi-linear": """
position: none
mixers:
  kda: {kind: kda, num_heads: 2, head_dim: 64, conv_kernel: 4}
  mla: {kind: mla, num_heads: 2, kv_lora_rank: 64, qk_nope_head_dim: 64, qk_rope_head_dim: 32, v_head_dim: 64}
ffns: {mlp: {kind: swiglu, intermediate_size: 192}}
stack: {num_layers: 4, block: pre_norm, mixer: kda*3 mla, ffn: mlp}
cache: {policy: full, state_dtype: float32}
""",
    "qwen3-next": """
position: {kind: rope, theta: 10000.0, partial_rotary_factor: 0.25}
mixers:
  gdn: {kind: gated_deltanet, num_key_heads: 2, num_value_heads: 4, key_head_dim: 64, value_head_dim: 64, conv_kernel: 4}
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 64, qk_norm: head, output_gate: true}
ffns: {mlp: {kind: swiglu, intermediate_size: 192}}
stack: {num_layers: 3, block: pre_norm, mixer: gdn gdn attn, ffn: mlp}
cache: {policy: full, state_dtype: float32}
""",
    "granite-hybrid": """
position: none
mixers:
  mamba: {kind: mamba2, num_heads: 4, head_dim: 64, state_size: 128, n_groups: 2, conv_kernel: 4}
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 64}
ffns: {mlp: {kind: swiglu, intermediate_size: 192}}
stack: {num_layers: 3, block: {kind: pre_norm, residual_multiplier: 0.22}, mixer: mamba*2 attn, ffn: mlp}
cache: {policy: full, state_dtype: float32}
""",
}

ALONE = (17, 5, 1, 1, 1, 8)
"""Tokens of the calls of a single sequence: a prompt, chunks over it, decode."""
RAGGED = ((17, 9), *((1, 1),) * 6)
"""Tokens of both rows of a padded batch, call by call."""
TOKENS = sum(ALONE)
FLOOR = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative error that any order of rounding may have: some units of the dtype's last place."""
TIMES_TORCH = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How far one file is off, and where its nodes are.

    Attributes:
        error: root mean square of the difference to torch in float32, over that of the logits.
        torch_error: the same of torch in the file's dtype: what rounding alone does to this model.
        bound: what ``error`` may be: some times ``torch_error``, or the dtype's own precision where that is more.
        places: provider -> nodes.
        away: nodes that are not on the provider, shape arithmetic aside.
    """

    family: str
    dtype: str
    provider: str
    error: float
    torch_error: float
    bound: float
    places: dict[str, int]
    away: tuple[str, ...]
    memcpy: int
    source: str

    @property
    def is_good(self) -> bool:
        return self.error <= self.bound and not self.away

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"is_good": self.is_good}


def check(family: str, dtype: str, provider: Provider, folder: Path) -> Finding:
    """Export a family with weights that ``dtype`` holds exactly, run it on ``provider``, and compare it with torch."""
    spec = loads_spec(BASE.format(name=family) + FAMILIES[family])
    device = "cuda" if provider == "cuda" and torch.cuda.is_available() else "cpu"
    model = archc.build(spec, device=device, dtype=torch.float32, seed=0)
    draw(model, getattr(torch, dtype))
    weights = folder / "weights.safetensors"
    save_file({name: tensor.contiguous().cpu() for name, tensor in weights_of(model).items()}, weights)
    ids = np.random.default_rng(3).integers(0, 256, (2, TOKENS))
    expected = run_torch(model, ids, device)
    rounded = run_torch(model.to(getattr(torch, dtype)), ids, device)
    export(expand(spec), folder / "out", provider=provider, dtype=dtype, weights=weights, check=False)
    got, wanted = run_file(folder / "out", provider, ids), expected_rows(expected)
    placement = check_provider(folder / "out" / "model.onnx", provider)
    torch_error = relative(expected_rows(rounded), wanted)
    return Finding(
        family=family,
        dtype=dtype,
        provider=provider,
        error=relative(got, wanted),
        torch_error=torch_error,
        bound=max(TIMES_TORCH * torch_error, FLOOR[dtype]),
        places=placement.counts(),
        away=tuple(node.op for node in placement.away),
        memcpy=len(placement.memcpy),
        source=placement.source,
    )


def draw(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Weights so large that every part matters in the output, rounded to ``dtype``."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in weights_of(model).items():
            if name.endswith(("A_log", "dt_bias")):
                continue
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.device)
            if "norm" in name and tensor.dim() == 1:
                tensor.add_(0.2 * noise)
            else:
                fan_in = tensor.shape[-1] if tensor.dim() > 1 and "embed" not in name else 1
                tensor.copy_(noise * (fan_in**-0.5 if tensor.dim() > 1 else 0.5))
            tensor.copy_(tensor.to(dtype))


@torch.no_grad()
def run_torch(model: torch.nn.Module, ids: np.ndarray, device: str) -> np.ndarray:
    """Logits (batch, seq, vocab) in float32, whatever the model computes in."""
    return model(torch.from_numpy(ids).to(device)).float().cpu().numpy()


def run_file(folder: Path, provider: Provider, ids: np.ndarray) -> np.ndarray:
    """Logits after every call of ``ALONE`` and ``RAGGED``, (calls, vocab), through archc's runtime."""
    model = load(folder, provider=provider)
    found: list[np.ndarray] = []
    alone, start = model.engine(1, TOKENS), 0
    for count in ALONE:
        logits = alone.step(ids[:1, start : start + count])
        assert logits is not None
        found.append(logits.astype(np.float32).copy())
        start += count
    both = model.engine(2, TOKENS)
    for counts in RAGGED:
        # Padding is some other token, so that one which is let in shows.
        given = np.full((2, max(counts)), 7)
        for row, count in enumerate(counts):
            begin = int(both.lengths[row])
            given[row, :count] = ids[row, begin : begin + count]
        logits = both.step(given, np.array(counts))
        assert logits is not None
        found.append(logits.astype(np.float32).copy())
    return np.concatenate(found)


def expected_rows(logits: np.ndarray) -> np.ndarray:
    """What ``run_file`` should give, taken from whole sequences, (batch, seq, vocab)."""
    alone = [logits[0, end - 1] for end in np.cumsum(ALONE)]
    ends = np.cumsum(RAGGED, axis=0)
    both = [logits[row, end[row] - 1] for end in ends for row in (0, 1)]
    return np.stack([*alone, *both])


def relative(got: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of the difference over that of what was wanted."""
    return float(np.sqrt(((got - wanted) ** 2).mean() / (wanted**2).mean()))
