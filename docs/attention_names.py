"""The names of attention in the field, and what each is here: the lines of the table in docs/attention.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TOKENS = 4096
WIDTH, HEADS, HEAD = 512, 8, 64
"""Every layer of the table is as wide: 8 heads of 64 over 512 channels."""

Uses = Callable[[Any], bool]


@dataclass(frozen=True)
class Entry:
    """A name in the field: its paper, its keys here, its formula, and which mixers (or positions) of specs are of it.

    ``family`` and ``kind`` say what is placed. ``around`` are sections of the spec around it, ``uses`` judges a kind of a spec of
    that family and name; ``cost`` is the family of the row in ``archc complexity``.
    """

    name: str
    paper: str
    kind: str
    formula: str
    keys: dict[str, Any] = field(default_factory=dict)
    around: dict[str, Any] = field(default_factory=dict)
    uses: Uses = lambda kind: True
    cost: str = "mixer"
    told: str = ""


GQA = {"num_heads": HEADS, "num_kv_heads": HEADS, "head_dim": HEAD}
MLA = {
    "num_heads": HEADS,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": HEAD,
    "qk_rope_head_dim": 32,
    "v_head_dim": HEAD,
}
ENCODER: dict[str, Any] = {"encoder": {}}
SCORE = {"num_heads": HEADS, "head_dim": HEAD}
SEEN = "o_i = sum_j softmax_j(q_i k_j / sqrt d) v_j"


def scored(score: str, formula: str, name: str, paper: str) -> Entry:
    """A mixer of scores under that kind of the family score."""
    keys = {"kind": score, "hidden_size": HEAD} if score == "additive" else {"kind": score}
    return Entry(
        name,
        paper,
        "mixer.general_attention",
        formula,
        {**SCORE, "score": keys},
        {"position": "none"},
        lambda kind: kind.score.kind_name == score,
        told=f"score: {score}",
    )


def positioned(kind: str, keys: dict[str, Any], formula: str, name: str, paper: str, around: dict[str, Any]) -> Entry:
    """A position, in a layer of multi-head attention."""
    return Entry(name, paper, f"position.{kind}", formula, keys, around)


ENTRIES = (
    scored("additive", "e_ij = w tanh(W q_i + U k_j), softmax over j", "additive (Bahdanau)", "1409.0473"),
    Entry(
        "a GRU that attends (Bahdanau's decoder)",
        "1409.0473",
        "mixer.attention_gru",
        "c_i = sum_j softmax_j(e(s_(i-1), h_j)) h_j; s_i = GRU(s_(i-1), x_i, c_i)",
        {},
        {
            "mixers": {
                "reader": {"kind": "gru", "hidden_size": WIDTH // 2, "bidirectional": True},
                "mixer": {
                    "kind": "attention_gru",
                    "hidden_size": WIDTH,
                    "score": {"kind": "additive", "hidden_size": WIDTH},
                },
            },
            "position": "none",
            "encoder": {"num_layers": 1, "block": "plain", "mixer": "reader", "ffn": "none"},
            "decoder": {"num_layers": 1, "block": "plain", "mixer": "mixer", "ffn": "none"},
        },
    ),
    Entry(
        "gated recurrent unit",
        "1406.1078",
        "mixer.gru",
        "h_t = (1 - z_t) h_(t-1) + z_t tanh(W x_t + U (r_t h_(t-1)))",
        {"hidden_size": WIDTH},
    ),
    scored("dot", "e_ij = q_i k_j, softmax over j", "multiplicative (Luong)", "1508.04025"),
    scored("scaled_dot", SEEN, "scaled dot product", "1706.03762"),
    scored("exp", "w_ij = exp(q_i k_j) over its sum", "exponential kernel", "1908.11775"),
    scored("linear", "w_ij = q_i k_j over the sum of sizes", "linear kernel of products", "1908.11775"),
    scored("relu", "w_ij = relu(q_i k_j) over its sum", "ReLU kernel of products", "-"),
    scored("elu_plus_one", "w_ij = elu(q_i k_j) + 1 over its sum", "ELU kernel of products", "-"),
    Entry(
        "multi-head (MHA)",
        "1706.03762",
        "mixer.gqa",
        f"{SEEN}, j <= i",
        GQA,
        uses=lambda kind: kind.num_kv_heads == kind.num_heads and not kind.sliding_window,
        told="num_kv_heads = num_heads",
    ),
    Entry(
        "grouped-query (GQA)",
        "2305.13245",
        "mixer.gqa",
        "the same, G query heads over one key-value head",
        {**GQA, "num_kv_heads": 2},
        uses=lambda kind: 1 < (kind.num_kv_heads or 0) < kind.num_heads,
        told="num_kv_heads < num_heads",
    ),
    Entry(
        "multi-query (MQA)",
        "1911.02150",
        "mixer.gqa",
        "the same, all query heads over one",
        {**GQA, "num_kv_heads": 1},
        uses=lambda kind: kind.num_kv_heads == 1 < kind.num_heads,
        told="num_kv_heads: 1",
    ),
    Entry(
        "latent (MLA)",
        "2405.04434",
        "mixer.mla",
        "k_j, v_j = W c_j, with c_j the cached latent; a rotated key is shared",
        MLA,
    ),
    Entry(
        "bidirectional (BERT)",
        "1810.04805",
        "mixer.gqa",
        f"{SEEN}, all j",
        GQA,
        ENCODER,
        told="in an encoder",
    ),
    Entry(
        "prefix LM",
        "1910.10683",
        "mixer.gqa",
        "softmax over j <= i, and over the whole prefix",
        GQA,
        {"stack": {"mask": "prefix"}},
        told="stack.mask: prefix",
    ),
    Entry(
        "cross attention",
        "1706.03762",
        "mixer.gqa",
        "q of the decoder, k and v of the encoder's tokens",
        {},
        {
            "mixers": {"own": {"kind": "gqa", **GQA}, "mixer": {"kind": "gqa", **GQA}},
            "encoder": {"mixer": "own"},
            "decoder": {"mixer": "own"},
        },
        cost="cross",
        told="decoder.cross",
    ),
    Entry(
        "sliding window",
        "2004.05150, 2310.06825",
        "mixer.gqa",
        "softmax over i - W < j <= i",
        {**GQA, "sliding_window": 512},
        uses=lambda kind: bool(kind.sliding_window),
        told="sliding_window",
    ),
    Entry(
        "chunked",
        "(Llama 4)",
        "mixer.gqa",
        "softmax over the j <= i of i's own chunk",
        {**GQA, "attention_chunk_size": 512},
        uses=lambda kind: bool(kind.attention_chunk_size),
        told="attention_chunk_size",
    ),
    Entry(
        "attention sinks (learned)",
        "2508.10925",
        "mixer.gqa",
        "one learned logit a head joins the softmax",
        {**GQA, "sink_logits": True},
        uses=lambda kind: bool(kind.sink_logits),
        told="sink_logits",
    ),
    Entry(
        "keys and values of an earlier layer (YOCO, CLA)",
        "2405.05254, 2405.12981",
        "mixer.gqa",
        "q of this layer, k and v of the one that kv_from names",
        {},
        {
            "mixers": {
                "own": {"kind": "gqa", **GQA},
                "mixer": {"kind": "gqa", **GQA, "kv_from": "own"},
            },
            "stack": {"num_layers": 2, "block": "pre_norm", "mixer": "own mixer", "ffn": "none"},
        },
        uses=lambda kind: bool(kind.kv_from),
        told="kv_from",
    ),
    Entry(
        "windows and global tokens (Longformer)",
        "2004.05150",
        "mixer.local_global",
        "softmax over abs(i - j) <= W / 2 and the global j; global i over all",
        {"num_heads": HEADS, "head_dim": HEAD, "attention_window": 512, "global_projections": True},
        {**ENCODER, "position": "learned"},
        lambda kind: kind.attention_window is not None,
        told="attention_window",
    ),
    Entry(
        "blocks and random blocks (BigBird)",
        "2007.14062",
        "mixer.local_global",
        "softmax over the blocks beside i's, the first, the last, and drawn ones",
        {"num_heads": HEADS, "head_dim": HEAD, "block_size": 64, "num_random_blocks": 3, "random_seed": 0},
        {**ENCODER, "position": "learned"},
        lambda kind: kind.block_size is not None,
        told="block_size",
    ),
    Entry(
        "sparse latent (DSA)",
        "2512.02556",
        "mixer.sparse_mla",
        "softmax over the topk j of I_ij = sum_h w_h relu(q_ih k_j)",
        {**MLA, "q_lora_rank": 256, "indexer": {"num_heads": 4, "head_dim": HEAD, "topk": 512}},
    ),
    Entry(
        "native sparse (NSA)",
        "2502.11089",
        "mixer.nsa",
        "g_c o_compressed + g_s o_selected + g_w o_window",
        {
            "num_heads": HEADS,
            "num_kv_heads": 2,
            "head_dim": HEAD,
            "v_head_dim": HEAD,
            "compress_block_size": 32,
            "compress_stride": 16,
            "compress_intermediate_size": HEAD,
            "select_block_size": 64,
            "num_selected_blocks": 8,
            "num_local_blocks": 2,
            "sliding_window": 512,
        },
    ),
    Entry(
        "mixture of blocks (MoBA)",
        "2502.13189",
        "mixer.moba",
        "softmax over i's block and the topk - 1 whose mean key has the largest q_i k",
        {**GQA, "block_size": 256, "topk": 3},
    ),
    Entry(
        "compressed (DeepSeek-V4)",
        "2606.19348",
        "mixer.compressed_attention",
        "softmax over a window and one entry for every m tokens, or the topk of those",
        {
            "num_heads": HEADS,
            "head_dim": HEAD,
            "q_lora_rank": 256,
            "o_groups": 2,
            "o_lora_rank": 128,
            "qk_rope_head_dim": 32,
            "sliding_window": 128,
            "compress_ratio": 4,
            "overlap": True,
            "indexer": {"num_heads": 4, "head_dim": HEAD, "topk": 256},
        },
    ),
    Entry(
        "linear (feature maps)",
        "2006.16236",
        "mixer.linear",
        "o_i = f(q_i) sum_j f(k_j) v_j / f(q_i) sum_j f(k_j), f = elu + 1",
        {"num_heads": HEADS, "head_dim": HEAD},
    ),
    Entry(
        "random features (Performer)",
        "2009.14794",
        "mixer.performer",
        "the same with f(x) = exp(w x - x x / 2) of random w",
        {"num_heads": HEADS, "head_dim": HEAD, "num_features": 256},
    ),
    Entry(
        "projected keys (Linformer)",
        "2006.04768",
        "mixer.linformer",
        "o_i = softmax(q_i (E K)^T / sqrt d) (F V)",
        {"num_heads": HEADS, "head_dim": HEAD, "projected_length": 256},
        {"position": "learned"},
    ),
    Entry(
        "retention (RetNet)",
        "2307.08621",
        "mixer.retnet",
        "S_t = g S_(t-1) + k_t v_t^T, a fixed g a head; o_t = S_t^T q_t",
        {"num_heads": HEADS, "key_head_dim": HEAD, "value_head_dim": HEAD},
    ),
    Entry(
        "lightning",
        "2401.04658, 2501.08313",
        "mixer.lightning",
        "the same after a SiLU, g also of the layer",
        {"num_heads": HEADS, "head_dim": HEAD},
    ),
    Entry(
        "gated linear (GLA)",
        "2312.06635",
        "mixer.gla",
        "S_t = diag(a_t) S_(t-1) + k_t v_t^T, a_t of the token",
        {"num_heads": HEADS, "key_head_dim": HEAD, "value_head_dim": HEAD, "gate_rank": 16},
    ),
    Entry(
        "selective state space (Mamba-1)",
        "2312.00752",
        "mixer.mamba1",
        "h_t = exp(d_t A) h_(t-1) + d_t B_t x_t; y_t = C_t h_t + D x_t, a channel each",
        {"intermediate_size": WIDTH, "state_size": 16, "dt_rank": 32},
    ),
    Entry(
        "state space duality (Mamba-2)",
        "2405.21060",
        "mixer.mamba2",
        "the same with a scalar A a head",
        {"num_heads": HEADS, "head_dim": HEAD, "state_size": HEAD, "n_groups": 1},
    ),
    Entry(
        "gated DeltaNet",
        "2412.06464",
        "mixer.gated_deltanet",
        "S_t = (1 - b_t k_t k_t^T) a_t S_(t-1) + b_t k_t v_t^T; o_t = S_t^T q_t",
        {"num_key_heads": HEADS, "num_value_heads": HEADS, "key_head_dim": HEAD, "value_head_dim": HEAD},
    ),
    Entry(
        "Kimi delta attention (KDA)",
        "2510.26692",
        "mixer.kda",
        "the same with a decay a channel",
        {"num_heads": HEADS, "head_dim": HEAD},
    ),
    positioned(
        "rope", {"theta": 10000.0}, "q_i, k_j turned by i, j: scores know i - j", "rotary (RoPE)", "2104.09864", {}
    ),
    positioned("alibi", {}, "score - m_h (i - j), a fixed m a head", "slopes (ALiBi)", "2108.12409", {}),
    positioned(
        "relative_bias",
        {"num_buckets": 32, "max_distance": 128},
        "score + b_h[bucket(j - i)], learned, one table a stack",
        "relative bias (T5)",
        "1910.10683",
        {},
    ),
    positioned(
        "disentangled",
        {"max_relative_positions": 512},
        "(q k + q r_(i-j) + s_(j-i) k) / sqrt(3 d)",
        "disentangled (DeBERTa)",
        "2006.03654",
        ENCODER,
    ),
    positioned("learned", {}, "x_i + p_i, a learned row", "learned positions", "1705.03122", {}),
    positioned("sinusoidal", {}, "x_i + sin, cos of i at fixed rates", "sinusoids", "1706.03762", {}),
)

PICTURES = {
    "multi-head (MHA)": "causal",
    "grouped-query (GQA)": "causal",
    "scaled dot product": "causal",
    "rotary (RoPE)": "causal",
    "latent (MLA)": "kimi-linear",
    "Kimi delta attention (KDA)": "kimi-linear",
    "sliding window": "nsa",
    "native sparse (NSA)": "nsa",
    "windows and global tokens (Longformer)": "longformer",
    "blocks and random blocks (BigBird)": "bigbird",
    "cross attention": "t5",
    "relative bias (T5)": "t5",
}
"""Name in the field -> what is drawn of it on the page, in attention-NAME.png."""
