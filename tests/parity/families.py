"""All families that are compared."""

from __future__ import annotations

from tests.parity.compressed import DEEPSEEK_V4
from tests.parity.deltanet import OLMO_HYBRID, QWEN3_5, QWEN3_NEXT
from tests.parity.dense import GRANITE, LLAMA, LLAMA_FULL, LLAMA_LINEAR, MISTRAL, QWEN3
from tests.parity.fused import BLOOM, BLOOM_NORMED, FALCON, FALCON_ALIBI, FALCON_NEW_ARCH, GPT2, GPT_NEOX
from tests.parity.jamba import JAMBA
from tests.parity.latent import DEEPSEEK_V2, DEEPSEEK_V2_LITE, DEEPSEEK_V3, DEEPSEEK_V32, KIMI_LINEAR
from tests.parity.layouts import OPT, OPT_PRENORM
from tests.parity.lightning import MINIMAX, MINIMAX_LINEAR_FIRST
from tests.parity.mamba import GRANITEMOEHYBRID, GRANITEMOEHYBRID_DENSE, MAMBA2, NEMOTRON_H, NEMOTRON_H_LATENT
from tests.parity.mixtures import GLM4_MOE, MINIMAX_M2
from tests.parity.normed import COHERE2, GEMMA2, GEMMA3, LLAMA4, OLMO2, PHI3, PHI3_LONG, QWEN2
from tests.parity.sparse import GPT_OSS, MIXTRAL, QWEN3_MOE

FAMILIES = (
    LLAMA,
    LLAMA_LINEAR,
    LLAMA_FULL,
    MISTRAL,
    GRANITE,
    QWEN2,
    OLMO2,
    GEMMA2,
    GEMMA3,
    PHI3,
    PHI3_LONG,
    COHERE2,
    LLAMA4,
    GLM4_MOE,
    MINIMAX_M2,
    MINIMAX,
    MINIMAX_LINEAR_FIRST,
    JAMBA,
    OPT,
    OPT_PRENORM,
    MIXTRAL,
    QWEN3,
    QWEN3_MOE,
    GPT_OSS,
    DEEPSEEK_V2,
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    KIMI_LINEAR,
    QWEN3_NEXT,
    QWEN3_5,
    OLMO_HYBRID,
    GPT2,
    GPT_NEOX,
    BLOOM,
    BLOOM_NORMED,
    FALCON,
    FALCON_NEW_ARCH,
    FALCON_ALIBI,
    MAMBA2,
    GRANITEMOEHYBRID,
    GRANITEMOEHYBRID_DENSE,
    NEMOTRON_H,
    NEMOTRON_H_LATENT,
)
