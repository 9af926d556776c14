"""Models that tensor parallelism is tried on: one for each way in which heads and channels can be cut."""

from __future__ import annotations

import archc
from archc.testing.placing import spec_text
from tests.plugins.kinds import EXAMPLES
from tests.torch_backend.examples import FFNS, GQA, MAMBA2, MIXERS, SWIGLU, small_spec

SHIPPED = {
    "llama tied": ("tiny-llama", ("embedding.tie_word_embeddings=true",)),
    "llama untied": ("tiny-llama", ("embedding.tie_word_embeddings=false",)),
    "llama-odd": ("tiny-llama", ("tokenizer.vocab_size=1001",)),
    "gpt-oss": ("tiny-gpt-oss", ()),
    "deepseek-v3": ("tiny-deepseek-v3", ()),
    "kimi-linear": ("tiny-kimi-linear", ()),
    "qwen3-next": ("tiny-qwen3-next", ()),
    "t5": ("tiny-t5", ()),
    "scores": ("tiny-scores", ()),
    "mamba2": (
        "mamba2-2.7b",
        (
            "embedding.hidden_size=32",
            "tokenizer.vocab_size=100",
            "mixers.mamba.num_heads=4",
            "mixers.mamba.head_dim=8",
            "mixers.mamba.state_size=8",
            "stack.num_layers=2",
        ),
    ),
    "bloom": (
        "bloom-7b1",
        (
            "embedding.hidden_size=32",
            "tokenizer.vocab_size=100",
            "mixers.attn.num_heads=4",
            "mixers.attn.num_kv_heads=4",
            "mixers.attn.head_dim=8",
            "ffns.mlp.intermediate_size=48",
            "stack.num_layers=2",
        ),
    ),
    "yoco": (
        "demo-yoco",
        (
            "embedding.hidden_size=32",
            "tokenizer.vocab_size=100",
            "mixers.local.num_heads=4",
            "mixers.local.num_kv_heads=2",
            "mixers.local.head_dim=8",
            "mixers.local.sliding_window=8",
            "ffns.mlp.intermediate_size=48",
            "stack.num_layers=4",
            "stack.mixer=local global reuse*2",
        ),
    ),
    "command-r": (
        "command-r7b",
        (
            "embedding.hidden_size=32",
            "tokenizer.vocab_size=100",
            "mixers.attn.num_heads=4",
            "mixers.attn.num_kv_heads=2",
            "mixers.attn.head_dim=8",
            "mixers.local.sliding_window=8",
            "ffns.mlp.intermediate_size=48",
            "stack.num_layers=4",
        ),
    ),
    "gemma-3": (
        "gemma-3-4b",
        (
            "embedding.hidden_size=32",
            "tokenizer.vocab_size=100",
            "mixers.global.num_heads=4",
            "mixers.global.num_kv_heads=2",
            "mixers.global.head_dim=8",
            "mixers.local.sliding_window=8",
            "ffns.mlp.intermediate_size=48",
            "stack.num_layers=3",
            "stack.mixer=local*2 global",
        ),
    ),
    "olmo-2": (
        "olmo-2-7b",
        (
            "embedding.hidden_size=32",
            "tokenizer.vocab_size=100",
            "mixers.attn.num_heads=4",
            "mixers.attn.num_kv_heads=4",
            "mixers.attn.head_dim=8",
            "ffns.mlp.intermediate_size=48",
            "stack.num_layers=2",
        ),
    ),
    "deepseek-v4": (
        "deepseek-v4-flash",
        (
            "embedding.hidden_size=32",
            "tokenizer.vocab_size=100",
            "mixers.window.num_heads=4",
            "mixers.window.head_dim=16",
            "mixers.window.qk_rope_head_dim=8",
            "mixers.window.q_lora_rank=12",
            "mixers.window.o_groups=2",
            "mixers.window.o_lora_rank=6",
            "mixers.window.sliding_window=5",
            "mixers.hca.compress_ratio=6",
            "mixers.csa.compress_ratio=3",
            "mixers.csa.indexer.num_heads=16",
            "mixers.csa.indexer.head_dim=12",
            "mixers.csa.indexer.topk=3",
            "ffns.moe.num_experts=8",
            "ffns.moe.num_experts_per_tok=2",
            "ffns.moe.intermediate_size=24",
            "stack.num_layers=5",
            "stack.mixer=window*2 (csa hca)* csa",
            "stack.ffn=hash*3 moe*",
        ),
    ),
}
"""Shipped specs."""

FOUR = {
    "four kv heads": f"{{{GQA.replace('num_kv_heads: 2', 'num_kv_heads: 4')}}}",
    "four kda heads": "{kind: kda, num_heads: 4, head_dim: 16}",
    "four key heads": "{kind: gated_deltanet, num_key_heads: 4, num_value_heads: 8, key_head_dim: 16, value_head_dim: 12}",
    "four heads of state in one group": f"{{{MAMBA2}}}",
    "four latent heads": "{kind: mla, num_heads: 4, kv_lora_rank: 24, qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 12}",
}
"""Mixers that four ranks can share."""


def graph_of_case(name):
    """A case is a shipped spec's, ``four …``, ``mixer: …``, ``ffn: …`` or a kind of the first party, ``family.name``."""
    if name in SHIPPED:
        spec, overrides = SHIPPED[name]
        return archc.expand(archc.load_spec(spec, overrides))
    if name in FOUR:
        return archc.expand(small_spec(FOUR[name], FFNS["moe shared"]))
    if name.startswith("mixer: "):
        return archc.expand(small_spec(MIXERS[name.removeprefix("mixer: ")], f"{{{SWIGLU}}}", tied=True))
    if name.startswith("ffn: "):
        return archc.expand(small_spec(MIXERS["gqa"], FFNS[name.removeprefix("ffn: ")]))
    family, _, kind = name.partition(".")
    example = EXAMPLES[name]
    around = {"head": {"kind": "mlm", "activation": "gelu"}, **example.around} if name in ENCODERS else example.around
    return archc.expand(archc.loads_spec(spec_text(family, kind, example.keys, around)))


ENCODERS = ("mixer.linformer", "mixer.local_global", "position.disentangled")
"""Kinds whose example has no logits."""
LEFT_OUT = {
    "mixer.gru": "nothing is cut, and there are no logits",
    "mixer.attention_gru": "one head",
    "head.none": "no logits",
    "head.pooler": "no logits",
    "head.classifier": "no logits a token",
    "embedding.patch": "no logits",
}

GROUPS = {
    "shipped": tuple(SHIPPED),
    "every": (
        *(f"mixer: {name}" for name in MIXERS),
        *(f"ffn: {name}" for name in FFNS),
        *(
            name
            for name in EXAMPLES
            if name not in LEFT_OUT
            and name.removeprefix("mixer.") not in MIXERS
            and not name.startswith(("cache.", "tokenizer.", "scaling.", "ffn."))
        ),
    ),
    "four": tuple(FOUR),
    "copies": ("llama tied", "llama-odd", "gpt-oss", "deepseek-v3", "kimi-linear", "mamba2", "deepseek-v3, recomputed"),
    "changed": ("llama untied, recomputed", "llama untied, compiled", "four kda heads, compiled"),
}
"""Those of ``copies`` and ``changed`` are run in float32, others in float64."""
