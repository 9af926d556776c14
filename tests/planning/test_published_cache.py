"""Cache tables that others published, met by the specs that are shipped, or by overrides of them that are written here.

Sources: DeepSeek (arXiv 2505.09343, table 1), PagedAttention (arXiv 2309.06180, section 3), Jamba
(arXiv 2403.19887, table 1), Kimi Linear (its report), provide.ai on DeepSeek-V4, future-shock.ai on GPT-2 XL, PrismML on Qwen3.5.
"""

from __future__ import annotations

import pytest

from archc.planning.parallel import Parallel
from archc.planning.serving.estimate import estimate_serving
from archc.planning.serving.memory import Serving
from archc.planning.serving.rank_cache import plain
from archc.spec.load import load_spec

GIB = 1 << 30
MIB = 1 << 20

OPT_13B = (
    "gpt2-xl",
    "mixers.attn.num_heads=40",
    "mixers.attn.num_kv_heads=40",
    "mixers.attn.head_dim=128",
    "embedding.hidden_size=5120",
    "stack.num_layers=40",
    "ffns.mlp.intermediate_size=20480",
)
"""Only what its cache depends on: 40 layers of 40 heads of 128."""

MISTRAL_7B = ("llama-3-8b", "tokenizer.vocab_size=32000")
JAMBA_1_5_LARGE = ("jamba-v0.1", "stack.num_layers=72", "embedding.hidden_size=8192", "mixers.attn.num_heads=64")
DEEPSEEK_V4_PRO = (
    "deepseek-v4-flash",
    "stack.num_layers=61",
    "stack.mixer=hca*2 (csa hca)* csa",
    "mixers.window.num_heads=128",
)
"""61 layers, of which 128, 128, 4, 128, … tokens make an entry."""


def served(model: tuple[str, ...], tokens: int, **options: object) -> Serving:
    name, *overrides = model
    return estimate_serving(load_spec(name, overrides), max_model_len=tokens, **options)  # pyright: ignore[reportArgumentType]


def per_token(found: Serving) -> int | float:
    return sum(plain(kind.token_bytes) for kind in found.kinds)


def growing_bytes(found: Serving) -> int:
    """What grows at the asked length, and windows; fixed states are not in these tables."""
    return found.stages[0].used_bytes - sum(kind.state_bytes for kind in found.kinds) * found.options.batch_size


@pytest.mark.parametrize(
    ("model", "published_bytes"),
    [
        (("deepseek-v3",), 70_272),
        (("qwen2.5-72b",), 327_680),
        (("llama-3.1-405b",), 516_096),
        (OPT_13B, 819_200),
        (("gpt2-xl",), 307_200),
        (("qwen3-0.6b",), 114_688),
    ],
)
def test_bytes_a_token_are_the_published_ones(model: tuple[str, ...], published_bytes: int):
    assert per_token(served(model, 4096, dtype="bf16")) == published_bytes


def test_the_hybrid_of_27_billion_grows_by_64_kib_a_token():
    """Qwen3.5-27B: 16 of 64 layers are full attention with 4 key-value heads of 256."""
    model = ("qwen3.5-9b", "stack.num_layers=64")
    found = served(model, 100_000, dtype="f16")
    assert per_token(found) == 65_536
    assert 6.0 < 100_000 * per_token(found) / GIB < 6.35, "about 6.3 GiB for 100K tokens"


def test_deepseek_v3_keeps_8_578_gib_of_131072_tokens_and_no_head_twice():
    """LMCache/LMCache#688, NVIDIA/TensorRT-LLM#16707: a row a token, not 128 heads of keys and values."""
    found = served(("deepseek-v3",), 131_072, dtype="bf16")
    assert found.stages[0].used_bytes == 131_072 * 70_272
    assert f"{found.stages[0].used_bytes / GIB:.3f}" == "8.578"


@pytest.mark.parametrize(
    ("model", "published_gib"),
    [(("jamba-v0.1",), 4), (("mixtral-8x7b",), 32), (MISTRAL_7B, 32), (("llama-2-7b",), 128), (JAMBA_1_5_LARGE, 9)],
)
def test_jamba_s_table_at_256k_tokens(model: tuple[str, ...], published_gib: int):
    """Its GB are GiB, windows are ignored, and recurrent states are not counted."""
    assert growing_bytes(served(model, 262_144, dtype="bf16")) == published_gib * GIB


@pytest.mark.parametrize(
    ("model", "published_gib", "index_layers"),
    [(("deepseek-v3",), 68.625, 0), (("deepseek-v4-flash",), 6.08, 21), (DEEPSEEK_V4_PRO, 8.71, 30)],
)
def test_deepseek_v4_s_third_party_table_at_a_million_tokens(
    model: tuple[str, ...], published_gib: float, index_layers: int
):
    """It holds if an indexer's entry is a byte a channel: 128 B of an entry of four tokens less than in bf16, a layer."""
    tokens = 1 << 20
    found = served(model, tokens, dtype="bf16")
    eight_bit = growing_bytes(found) - index_layers * 128 * tokens // 4
    assert eight_bit / GIB == pytest.approx(published_gib, rel=0.01 if index_layers else 1e-9)


def test_kimi_linear_saves_74_07_percent_of_the_cache_that_all_layers_of_latents_would_grow():
    released = served(("kimi-linear-48b-a3b",), 1 << 20)
    latents = served(("kimi-linear-48b-a3b", "stack.mixer=mla*"), 1 << 20)
    assert (per_token(released), per_token(latents)) == (7 * 1152, 27 * 1152)
    assert round(1 - per_token(released) / per_token(latents), 4) == 0.7407


def test_users_can_reconcile_kimi_linear_s_cache():
    """vllm-project/vllm#28228: what grows, what is fixed, what is cut and what is not, a layer kind at a time."""
    found = served(("kimi-linear-48b-a3b",), 131_072, parallel=Parallel(tp=2))
    kda, mla = found.kinds
    assert (mla.token_bytes, mla.rank_token_bytes) == (8_064, 8_064)
    assert kda.state_bytes == 20 * 32 * 128 * 128 * 4 + 20 * 3 * 4_096 * 3 * 2 == 41_943_040 + 1_474_560
    assert kda.rank_state_bytes * 2 == kda.state_bytes
    assert mla.held == ["latent: each piece on 2 ranks (all heads read it)"]
    assert kda.held == ["conv_state: one piece a rank", "recurrent_state: one piece a rank"]
    alone = served(("kimi-linear-48b-a3b",), 131_072)
    assert f"{alone.stages[0].used_bytes / GIB:.3f}" == "1.025"


def test_windows_of_gpt_oss_stop_and_what_a_runtime_may_reserve_is_another_number():
    """gpustack/gguf-parser-go#32: half of the layers stop at 128 tokens; alvarobartt/hf-mem#60: they are not nothing."""
    small = served(("gpt-oss-20b",), 131_072, dtype="bf16")
    assert small.stages[0].used_bytes == 3 * GIB + 3 * MIB
    large = served(("gpt-oss-120b",), 131_072, dtype="bf16")
    assert large.stages[0].unmanaged_bytes == 131_072 * 73_728
    full, window = sorted(large.kinds, key=lambda kind: kind.window_tokens or 0)
    assert (full.token_bytes, window.token_bytes) == (36_864, 0)
    assert (window.window_tokens, window.window_bytes) == (128, 128 * 36_864)


def test_gemma_3_keeps_10_406_gib_of_131072_tokens():
    found = served(("gemma-3-27b",), 131_072, dtype="bf16")
    assert f"{found.stages[0].used_bytes / GIB:.3f}" == "10.406"


def test_opt_13b_reserves_1_6_gb_a_request_of_2048_tokens():
    found = served(OPT_13B, 2048, dtype="f16")
    assert found.stages[0].used_bytes == 1_677_721_600
