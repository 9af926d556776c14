"""The models whose exports are compared, with equal weights: transformers' checkpoint for the peers, archc's names for archc.

`prepare(name, folder)` writes both into ``folder/checkpoint`` and ``folder/archc`` and leaves them there for the next run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from peers import SMALL_KIMI, SMALL_LLAMA, kimi_peer, llama_peer
from safetensors.torch import save_file
from torch import Tensor, nn

import archc
from archc.expansion import expand

SMALL_MLA = """
spec_version: 1
name: small-mla
tokenizer: {kind: external, vocab_size: 32000}
embedding: {hidden_size: 512, tie_word_embeddings: false}
position: {kind: rope, theta: 10000.0, interleaved: true}
norm: {kind: rms_norm, eps: 1e-6}
max_position_embeddings: 8192
mixers:
  mla:
    {kind: mla, num_heads: 8, q_lora_rank: 256, kv_lora_rank: 128, qk_nope_head_dim: 64, qk_rope_head_dim: 32,
     v_head_dim: 64}
ffns: {mlp: {kind: swiglu, intermediate_size: 1408}}
stack: {num_layers: 8, block: pre_norm, mixer: mla, ffn: mlp}
"""

SMALL_GDN = """
spec_version: 1
name: small-gdn
tokenizer: {kind: external, vocab_size: 32000}
embedding: {hidden_size: 512, tie_word_embeddings: false}
position: {kind: rope, theta: 10000.0, partial_rotary_factor: 0.25}
norm: {kind: rms_norm, eps: 1e-6, weight_offset: 1.0}
max_position_embeddings: 8192
mixers:
  gdn: {kind: gated_deltanet, num_key_heads: 8, num_value_heads: 8, key_head_dim: 64, value_head_dim: 64, conv_kernel: 4}
  attn: {kind: gqa, num_heads: 8, num_kv_heads: 4, head_dim: 64, qk_norm: head, output_gate: true}
ffns: {mlp: {kind: swiglu, intermediate_size: 1408}}
stack: {num_layers: 8, block: pre_norm, mixer: (gdn*3 attn)*, ffn: mlp}
cache: {policy: full, state_dtype: float32}
"""


def mla_peer() -> nn.Module:
    """transformers' model of SMALL_MLA: DeepSeek-V3 whose feed-forwards are all dense."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        q_lora_rank=256,
        kv_lora_rank=128,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        first_k_dense_replace=8,
        n_routed_experts=8,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return DeepseekV3ForCausalLM(config)


def gdn_peer() -> nn.Module:
    """transformers' model of SMALL_GDN: Qwen3.5's text side, three gated DeltaNet layers to one of attention."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
        linear_num_key_heads=8,
        linear_num_value_heads=8,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return Qwen3_5ForCausalLM(config)


@dataclass(frozen=True, slots=True)
class Deployed:
    """One architecture on both sides.

    Attributes:
        spec: archc's.
        peer: transformers' model, seeded.
        rules: (pattern of transformers' name, archc's name or a function that takes the tensor apart), first match wins.
    """

    spec: str
    peer: Callable[[], nn.Module]
    rules: tuple[tuple[str, str | Callable[[str, Tensor], dict[str, Tensor]]], ...]


def _convolution(layer: str, tensor: Tensor) -> dict[str, Tensor]:
    """One convolution over [q | k | v], all three as wide."""
    parts = zip("qkv", tensor.chunk(3), strict=True)
    return {f"{layer}.mixer.conv.{stream}_conv1d.weight": part for stream, part in parts}


def _joined_qkv(layer: str, tensor: Tensor) -> dict[str, Tensor]:
    parts = zip("qkv", tensor.chunk(3), strict=True)
    return {f"{layer}.mixer.{stream}_proj.weight": part for stream, part in parts}


def _query_and_gate(layer: str, tensor: Tensor) -> dict[str, Tensor]:
    """Rows [q | gate] for each of eight heads."""
    query, gate = tensor.unflatten(0, (8, -1)).chunk(2, dim=1)
    names = (f"{layer}.mixer.{name}_proj.weight" for name in ("q", "gate"))
    return dict(zip(names, (query.flatten(0, 1), gate.flatten(0, 1)), strict=True))


def _decay(layer: str, tensor: Tensor) -> dict[str, Tensor]:
    """(1, 1, H, 1) to (H,)."""
    return {f"{layer}.mixer.forget_gate.A_log": tensor.flatten()}


_ATTENTION = r"model\.(layers\.\d+)\.self_attn\."
_LINEAR = r"model\.(layers\.\d+)\.(?:linear|self)_attn\."
_COMMON = (
    (r"model\.(layers\.\d+)\.input_layernorm\.weight", r"\1.mixer_norm.weight"),
    (r"model\.(layers\.\d+)\.post_attention_layernorm\.weight", r"\1.ffn_norm.weight"),
    (r"model\.(layers\.\d+)\.mlp\.(\w+)\.weight", r"\1.ffn.\2.weight"),
    (r"model\.(embed_tokens|norm)\.weight", r"\1.weight"),
    (r"lm_head\.weight", "lm_head.weight"),
)
_MLA = (
    (_ATTENTION + r"kv_b_proj\.weight", r"\1.mixer.attention.kv_b_proj.weight"),
    (_ATTENTION + r"(\w+)\.weight", r"\1.mixer.\2.weight"),
)
_KDA = (
    (_LINEAR + r"conv1d\.weight", _convolution),
    (_LINEAR + r"forget_gate\.A_log", _decay),
    (_LINEAR + r"forget_gate\.dt_bias", r"\1.mixer.forget_gate.dt_bias"),
    (_LINEAR + r"forget_gate\.(f_[ab]_proj)\.weight", r"\1.mixer.\2.weight"),
)
_GDN = (
    (_LINEAR + r"conv1d\.weight", _convolution),
    (_LINEAR + r"(A_log|dt_bias)", r"\1.mixer.forget_gate.\2"),
    (_LINEAR + r"norm\.weight", r"\1.mixer.o_norm.weight"),
    (_LINEAR + r"out_proj\.weight", r"\1.mixer.o_proj.weight"),
    (_LINEAR + r"in_proj_qkv\.weight", _joined_qkv),
    (_LINEAR + r"in_proj_z\.weight", r"\1.mixer.g_proj.weight"),
    (_LINEAR + r"in_proj_([ab])\.weight", r"\1.mixer.\2_proj.weight"),
    (_ATTENTION + r"q_proj\.weight", _query_and_gate),
    (_ATTENTION + r"(\w+)\.weight", r"\1.mixer.\2.weight"),
)
_KIMI = (*_KDA, *_MLA, (_LINEAR + r"(\w+)\.weight", r"\1.mixer.\2.weight"))

MODELS = {
    "small-llama": Deployed(SMALL_LLAMA, llama_peer, (*_MLA, *_COMMON)),
    "small-kimi": Deployed(SMALL_KIMI, kimi_peer, (*_KIMI, *_COMMON)),
    "small-mla": Deployed(SMALL_MLA, mla_peer, (*_MLA, *_COMMON)),
    "small-gdn": Deployed(SMALL_GDN, gdn_peer, (*_GDN, *_COMMON)),
}


def renamed(model: Deployed, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """transformers' tensors under archc's names.

    Raises:
        SystemExit: a tensor has no place, a weight stays empty, or a shape differs.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for pattern, rule in model.rules:
            inside = re.fullmatch(pattern, name)
            if inside is not None:
                found.update({inside.expand(rule): tensor} if isinstance(rule, str) else rule(inside[1], tensor))
                break
        else:
            raise SystemExit(f"{name} has no place")
    wanted = {name: tuple(param.shape) for name, param in expand(archc.loads_spec(model.spec)).params().items()}
    given = {name: tuple(tensor.shape) for name, tensor in found.items() if name in wanted}
    if given != wanted or set(found) - set(wanted) - {"lm_head.weight"}:
        raise SystemExit(f"weights differ: {sorted(set(given.items()) ^ set(wanted.items()))}")
    return {name: found[name].contiguous() for name in wanted}


def prepare(name: str, folder: Path) -> Path:
    """``folder/checkpoint`` (transformers') and ``folder/archc/weights.safetensors`` with ``spec.yaml``; the folder."""
    done = folder / "archc" / "weights.safetensors"
    if done.exists():
        return folder
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = MODELS[name]
    peer = model.peer()
    peer.save_pretrained(folder / "checkpoint")
    _tokenizer(folder / "checkpoint")
    done.parent.mkdir(parents=True, exist_ok=True)
    (done.parent / "spec.yaml").write_text(model.spec)
    save_file(renamed(model, peer.state_dict()), done)
    return folder


def _tokenizer(folder: Path) -> None:
    """A tokenizer of 32,000 words, because onnxruntime-genai's builder insists on saving one."""
    words = {f"<{i}>": i for i in range(32000)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<0>"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<0>", "eos_token": "<2>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
