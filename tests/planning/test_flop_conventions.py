"""FLOP conventions of papers, each against its paper's own example."""

from __future__ import annotations

import pytest

from archc.errors import ArchcError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.ops.linear_attention import gated_delta_flops
from archc.planning.hardware import find_device
from archc.planning.timing.budget import utilization
from archc.planning.timing.flop_conventions import SOURCES, ModelFlops, training_flops
from archc.planning.timing.roofline import Roof
from archc.spec.load import load_spec, loads_spec

PALM_540B = """\
spec_version: 1
name: palm-540b
tokenizer: {kind: external, vocab_size: 256000}
embedding: {hidden_size: 18432, tie_word_embeddings: true}
position: none
norm: {kind: layer_norm, eps: 1e-6, bias: false}
mixers:
  attn: {kind: gqa, num_heads: 48, num_kv_heads: 1, head_dim: 256}
ffns:
  mlp: {kind: swiglu, intermediate_size: 73728}
stack: {num_layers: 118, block: {kind: parallel, shared_norm: true}, mixer: attn, ffn: mlp}
"""


def gpt(layers: int, width: int, heads: int, vocab: int, context: int) -> Graph:
    """GPT-2's architecture in other sizes: feed-forwards of four widths, learned positions, a tied head, biases everywhere."""
    sizes = {
        "embedding.hidden_size": width,
        "mixers.attn.num_heads": heads,
        "mixers.attn.num_kv_heads": heads,
        "mixers.attn.head_dim": width // heads,
        "ffns.mlp.intermediate_size": 4 * width,
        "stack.num_layers": layers,
        "tokenizer": f"{{kind: external, vocab_size: {vocab}}}",
        "max_position_embeddings": context,
    }
    return expand(load_spec("gpt2", [f"{key}={value}" for key, value in sizes.items()]))


def shipped(name: str, *overrides: str) -> Graph:
    return expand(load_spec(name, overrides))


def test_palm_s_formula_gives_its_example():
    # Appendix B: L = 118, H = 48, Q = 256, T = 2048, N = 540.35e9.
    graph = expand(loads_spec(PALM_540B))
    assert estimate(graph).parameters.total == pytest.approx(540.35e9, abs=0.01e9)
    found = training_flops(graph, "palm", length=2048)
    # The paper's N is rounded to five digits.
    assert found.per_token == pytest.approx(3_277_734_806_784, rel=2e-5)
    assert found.attention * 3 / 2048 == 12 * 118 * 48 * 256 * 2048


def test_megatron_s_formula_gives_its_example_to_the_digit():
    # GPT-3: l = 96, h = 12288, s = 2048, V = 51200, B = 1536, all activations recomputed.
    found = training_flops(gpt(96, 12288, 96, 51200, 2048), "megatron", length=2048)
    exact = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    assert found.hardware("full") * 1536 == pytest.approx(4.5109707533231063e18, rel=1e-15)
    assert found.hardware("full") * 1536 == pytest.approx(exact, rel=1e-15)
    without = 72 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 96 * 12288))
    assert found.training == pytest.approx(without, rel=1e-15)


@pytest.mark.parametrize(
    ("layers", "width", "context", "parameters", "tokens_per_s", "published_tflops", "published_mfu"),
    [
        (80, 8192, 2048, 64_862_437_376, 1007, 408, 0.4125),
        (48, 7168, 2048, 29_975_214_080, 2115, 398, 0.4027),
        (48, 7168, 8192, 30_019_254_272, 1384, 296, 0.2992),
    ],
)
def test_mosaic_s_formula_gives_the_rows_of_its_h100_table(
    layers: int,
    width: int,
    context: int,
    parameters: int,
    tokens_per_s: int,
    published_tflops: int,
    published_mfu: float,
):
    graph = gpt(layers, width, width // 128, 50368, context)
    assert estimate(graph).parameters.total == parameters
    found = training_flops(graph, "mosaic", length=context)
    flops_per_s = found.per_token * tokens_per_s
    assert flops_per_s / 1e12 == pytest.approx(published_tflops, rel=0.001)
    peak = find_device("h100").peak("bfloat16")[0]
    assert flops_per_s / peak == pytest.approx(published_mfu, abs=0.0002)


def test_kaplan_s_formula_leaves_the_vocabulary_out_and_halves_attention():
    # C_forward = 2 N + 2 n_layer n_ctx d_attn with N = 12 n_layer d_model^2, for GPT-2's 12 layers of 768.
    found = training_flops(gpt(12, 768, 12, 50257, 1024), "kaplan", length=1024)
    assert found.layers == 1024 * 2 * 12 * 12 * 768**2
    assert found.attention == 1024 * 2 * 12 * 1024 * 768
    assert found.per_token == 3 * (2 * 12 * 12 * 768**2 + 2 * 12 * 1024 * 768)


def test_chinchilla_s_formula_counts_its_components():
    # Appendix F, line by line, for the architecture of its smallest model.
    s, d, layers, heads, size, ffw, vocab = 2048, 640, 10, 10, 64, 2560, 32000
    embeddings = 2 * s * vocab * d
    qkv = 2 * 3 * s * d * (size * heads)
    logits = 2 * s * s * (size * heads)
    softmax = 3 * heads * s * s
    reduction = 2 * s * s * (size * heads)
    project = 2 * s * (size * heads) * d
    dense = 2 * s * (d * ffw + d * ffw)
    final = 2 * s * d * vocab
    found = training_flops(gpt(layers, d, heads, vocab, s), "chinchilla", length=s)
    assert found.outside == embeddings + final
    assert found.attention == layers * (logits + softmax + reduction)
    assert found.layers == layers * (qkv + project + dense)
    assert found.training == 3 * (embeddings + layers * (qkv + logits + softmax + reduction + project + dense) + final)


def test_six_nd_is_llama_3_405b_s_published_training():
    # 3.8e25 FLOPs over 15.6 T tokens (arXiv 2407.21783).
    graph = shipped("llama-3.1-405b")
    tokens = 15_600_000_000_000
    assert training_flops(graph, "6nd", length=8192).per_token * tokens == pytest.approx(3.8e25, rel=0.0005)
    # Ours leaves the input table out, which is no product, and counts attention at 8,192 tokens, which 6 N leaves out.
    ours = training_flops(graph, "archc", length=8192).per_token
    assert ours * tokens == pytest.approx(3.9374e25, rel=1e-4)
    embedding = estimate(graph).parameters.embedding
    attention = 3 * 126 * 16384 * 2 * (8192 + 1)
    norms = (2 * 126 + 1) * 16384
    assert ours == training_flops(graph, "6nd", length=8192).per_token - 6 * (embedding + norms) + attention


@pytest.mark.parametrize(
    ("name", "published_gflops", "tolerance"),
    [("deepseek-v2", 155, 0.005), ("deepseek-v3", 250, 0.005), ("llama-3.1-405b", 2448, 0.015)],
)
def test_ours_gives_deepseek_s_table_of_training_flops(name: str, published_gflops: int, tolerance: float):
    # ISCA 2025 (arXiv 2505.09343), table 2, at 4,096 tokens; its row of Qwen 72B lies below 6 N and is no measure.
    found = training_flops(shipped(name), "archc", length=4096).per_token / 1e9
    assert found == pytest.approx(published_gflops, rel=tolerance)


def test_deepseek_v3_s_device_hours_come_to_an_mfu_of_39_percent():
    # 14.8 T tokens in 2.664 M H800 hours (arXiv 2412.19437, table 1), against the dense BF16 peak.
    device = find_device("h800")
    roof = Roof(device, "bfloat16", device.peak("bfloat16")[0])
    model = training_flops(shipped("deepseek-v3"), "archc", length=4096)
    share = utilization(model, roof, tokens=14_800_000_000_000, gpu_hours=2_664_000)
    assert share == pytest.approx(0.3909, abs=0.0003)


def test_kda_counts_more_than_its_report_by_the_whole_triangles_of_a_chunk():
    # Kimi Linear, section 6.3: 6 T d^2 + 3 T C d + T C^2 a head, C = 64; its example has T = 2^20, d = 128.
    tokens, d, chunk = 1 << 20, 128, 64
    published = 6 * tokens * d * d + 3 * tokens * chunk * d + tokens * chunk * chunk
    assert published == 133_143_986_176
    needed = gated_delta_flops(d, d, "many", "needed")
    ours = needed if isinstance(needed, int) else needed.evaluate({"seq": tokens})
    # Products with the state are theirs; inside a chunk ours are five triangles of width d, theirs three and an inverse.
    assert ours == 6 * tokens * d * d + tokens * (5 * chunk - 1) * d
    assert ours / published == pytest.approx(1.0958, abs=1e-4)
    assert gated_delta_flops(d, d, "few", "needed").evaluate({"seq": 1}) == 6 * d * d


def test_full_attention_counts_as_the_kimi_linear_report_up_to_the_diagonal():
    # Equation 14: 2 T^2 d a head; ours has T (T + 1) pairs.
    from archc.ops.attention import causal_pairs_twice

    tokens, d = 1 << 20, 128
    twice = causal_pairs_twice("needed").evaluate({"seq": tokens, "past": 0})
    assert twice * 2 * d == 2 * tokens * tokens * d + 2 * tokens * d
    assert 2 * tokens * tokens * d == 281_474_976_710_656


def test_ours_is_the_estimate_s_training_step():
    for name in (
        "kimi-linear-48b-a3b",
        "gpt-oss-20b",
        "t5-base",
        "bert-base-uncased",
        "mamba2-2.7b",
        "vit-base-patch16-224",
    ):
        graph = shipped(name)
        found = training_flops(graph, "archc", length=512)
        assert found.training == estimate(graph, max_model_len=512).flops.numbers["train_step"], name


def test_full_recomputation_repeats_the_forward_of_the_layers_but_not_of_the_head():
    graph = gpt(12, 768, 12, 50257, 1024)
    for convention in SOURCES:
        found = training_flops(graph, convention, length=1024)
        assert found.hardware("full") - found.training == found.layers + found.attention, convention
        assert found.hardware("none") == found.hardware("selective") == found.training, convention
    # PaLM's MFU of 46.2% is an HFU of 57.8%: less than full recomputation, which would be 4/3.
    assert 0.578 / 0.462 < 4 / 3


@pytest.mark.parametrize("convention", ["kaplan", "chinchilla", "palm", "megatron", "mosaic"])
@pytest.mark.parametrize("name", ["kimi-linear-48b-a3b", "mamba2-2.7b", "t5-base"])
def test_a_formula_that_knows_one_full_attention_refuses_other_models(convention: str, name: str):
    with pytest.raises(ArchcError, match=f"{convention} counts one attention over the whole text in every layer; "):
        training_flops(shipped(name), convention, length=1024)


def test_megatron_s_formula_refuses_layers_that_are_not_gpt_s():
    with pytest.raises(ArchcError, match=r"megatron counts layers with 12 h\^2 weights .*\(h = 4,096\)"):
        training_flops(shipped("llama-3-8b"), "megatron", length=1024)


def test_an_unknown_convention_names_the_nearest():
    with pytest.raises(ArchcError, match=r"'chinchila' is unknown\. Did you mean chinchilla\?"):
        training_flops(shipped("gpt2"), "chinchila", length=1024)
    with pytest.raises(ArchcError, match=r"Known are archc, 6nd, kaplan"):
        training_flops(shipped("gpt2"), "zzz", length=1024)


def test_flops_of_1e15_tokens_are_exact_integers():
    tokens = 10**15
    found: ModelFlops = training_flops(gpt(12, 768, 12, 50257, 1024), "palm", length=tokens)
    assert found.attention == 4 * 12 * 768 * tokens * tokens
    assert found.training == 3 * (found.layers + found.attention)
