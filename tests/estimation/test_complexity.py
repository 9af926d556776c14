"""Growth, crossings and bytes moved: exponents that are known, and every crossing by brute force."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

import archc
from archc.errors import ArchcError
from archc.estimation.complexity import KindGrowth, complexity
from archc.estimation.complexity_crossing import crossing
from archc.estimation.complexity_growth import Growth, exponent
from archc.estimation.estimate import estimate
from archc.ir.size import Dim, ceil_div, evaluate, minimum, symbol
from archc.spec.load import load_spec, loads_spec, shipped_specs

N = symbol("n")

GROWTHS = {
    ("kimi-linear-48b-a3b", "kda"): ("O(n)", "O(1)", "O(1)"),
    ("kimi-linear-48b-a3b", "mla"): ("O(n^2)", "O(n)", "O(n)"),
    ("kimi-linear-48b-a3b", "moe"): ("O(n)", "O(1)", "-"),
    ("llama-3-8b", "attn"): ("O(n^2)", "O(n)", "O(n)"),
    ("gpt-oss-20b", "sliding"): ("O(n·w)", "O(w)", "O(w)"),
    ("gpt-oss-20b", "full"): ("O(n^2)", "O(n)", "O(n)"),
    ("llama-4-scout", "chunked"): ("O(n·c)", "O(c)", "O(c)"),
    ("minimax-text-01", "lightning"): ("O(n)", "O(1)", "O(1)"),
    ("mamba2-2.7b", "mamba"): ("O(n)", "O(1)", "O(1)"),
    ("jamba-v0.1", "mamba"): ("O(n)", "O(1)", "O(1)"),
    ("qwen3-next-80b-a3b", "gdn"): ("O(n)", "O(1)", "O(1)"),
    ("retnet", "retention"): ("O(n)", "O(1)", "O(1)"),
    ("gla", "gla"): ("O(n)", "O(1)", "O(1)"),
    ("performer", "favor"): ("O(n)", "O(1)", "O(1)"),
    ("linformer", "attn"): ("O(n·k)", "-", "-"),
    ("longformer-base-4096", "sparse"): ("O(n·(w+g))", "-", "-"),
    # Those that choose their keys score something of every earlier one.
    ("deepseek-v3.2", "dsa"): ("O(n^2)", "O(n)", "O(n)"),
    ("nsa-demo", "nsa"): ("O(n^2)", "O(n)", "O(n)"),
    ("moba-demo", "moba"): ("O(n^2)", "O(n)", "O(n)"),
    ("deepseek-v4-flash", "window"): ("O(n·w)", "O(w)", "O(w)"),
    ("deepseek-v4-flash", "csa"): ("O(n^2)", "O(n)", "O(n)"),
}


def kind_of(spec: str, name: str) -> KindGrowth:
    return next(kind for kind in complexity(spec).kinds if kind.name == name)


def last_loss(kind: Dim, full: Dim, most: int) -> int:
    """The last n up to a length at which the kind costs as much or more, found by looking at every n."""
    env = {"batch": 1}
    return max(
        (n for n in range(1, most) if evaluate(kind, env | {"n": n}) >= evaluate(full, env | {"n": n})), default=0
    )


@pytest.mark.parametrize(("spec", "name"), GROWTHS)
def test_every_kind_grows_as_it_is_known_to(spec: str, name: str):
    growth = kind_of(spec, name).growth
    assert tuple(str(growth[what]) for what in ("prefill", "decode", "cache")) == GROWTHS[spec, name]


def test_a_bound_is_told_in_tokens():
    assert kind_of("gpt-oss-20b", "sliding").growth["prefill"].bounds == {"w": 128}
    assert kind_of("llama-4-scout", "chunked").growth["cache"].bounds == {"c": 8192}
    assert kind_of("linformer", "attn").growth["prefill"].bounds == {"k": 256}
    assert kind_of("gpt-oss-20b", "full").growth["prefill"].bounds == {}


def test_bounds_that_stand_together_add_up():
    texts = [str(Growth(order, {"w": 512, "g": 2})) for order in (0, 1, 2)]
    assert texts == ["O(w+g)", "O(n·(w+g))", "O(n^2·(w+g))"]
    assert [str(Growth(0)), str(Growth(0, {"w": 9})), str(Growth(1.58)), str(Growth())] == [
        "O(1)",
        "O(w)",
        "O(n^1.58)",
        "-",
    ]


def test_the_exponent_of_a_polynomial_is_that_of_its_highest_term():
    assert exponent(N * N * N + N) == 3
    assert exponent(N * N + N * (1 << 30)) == 2
    assert exponent(minimum(N, 1 << 20) * N) == 1
    assert exponent(minimum(N, 7)) == 0
    assert exponent(0) is None
    # What swings inside a chunk does not grow.
    assert exponent(N - (ceil_div(N + 1, 8191) - 1) * 8191 + 1) == 0


def test_the_whole_model_costs_what_its_estimate_says():
    for name in ("kimi-linear-48b-a3b", "gpt-oss-20b", "mamba2-2.7b"):
        found = estimate(name, max_model_len=4096)
        step = complexity(name, lengths=[4096]).whole.at[4096]
        assert step["prefill"].flops == found.flops.numbers["prefill"]
        assert step["decode"].flops == found.flops.numbers["decode"]
        cache = evaluate(complexity(name).whole.costs.cache_bytes, {"n": 4096, "batch": 1})
        assert cache == found.cache.used_bytes


def test_the_kinds_of_all_layers_and_the_head_are_the_whole_model():
    found = complexity("kimi-linear-48b-a3b", lengths=[1000], batch_size=3)
    kinds = sum(kind.at[1000]["decode"].flops * kind.layers for kind in found.kinds)
    assert found.whole.at[1000]["decode"].flops == kinds + 3 * 2 * 2304 * 163840


def test_kda_is_cheaper_than_mla_from_the_length_that_counting_every_length_gives():
    found = {kind.name: kind for kind in complexity("kimi-linear-48b-a3b").kinds}
    kda, mla, overtakes = found["kda"].costs, found["mla"].costs, found["kda"].overtakes
    assert overtakes is not None
    assert overtakes.against == "mla"
    for form, at in overtakes.tokens.items():
        assert at is not None
        assert 1 < at == last_loss(getattr(kda, form), getattr(mla, form), 4 * at) + 1


@pytest.mark.parametrize(
    ("kind", "full"),
    [
        (N * 300, N * N),
        (N * 300, N * N - N * 7 + 9000),
        (minimum(N, 50) * 90, N * 12),
        (minimum(N, 50) * minimum(N, 50), N * 3),
        (minimum(N * 2, 90) * 40, minimum(N, 400) * 10),
        # Chunks whose cost rises inside and falls back at their ends, so that gain and loss alternate for a while.
        ((N - (ceil_div(N, 64) - 1) * 64) * 50 + N * 4, N * 5),
        ((N - (ceil_div(N, 16) - 1) * 16) * minimum(N, 100) + N, N * 3 - 20),
        (ceil_div(N, 7) * ceil_div(N, 5) * 30, N * N),
        (N * N * 2, N * N * N - N * N * 40 + N * 350),
        (ceil_div(ceil_div(N, 4), 6) * 100, N * 5),
        (minimum(ceil_div(N, 16), 9) * 700, N * 4),
    ],
)
def test_a_crossing_is_the_one_that_counting_every_length_gives(kind: Dim, full: Dim):
    assert crossing(kind, full) == last_loss(kind, full, 6000) + 1 < 5000


def test_what_is_never_cheaper_has_no_crossing_and_what_always_is_has_1():
    assert crossing(N * N, N * 5) is None
    assert crossing(N * 5, N * 5) is None
    assert crossing(N * 5 - 1, N * 5) == 1
    assert crossing(3, 4) == 1
    assert crossing(4, 4) is None
    # Cheaper at every length but the multiples of 9, for ever.
    assert crossing(ceil_div(N, 9) * 9, N + 9 - (ceil_div(N + 1, 9) - ceil_div(N, 9)) * 9) is None


@pytest.mark.parametrize("name", shipped_specs())
def test_every_shipped_spec_has_its_crossings_and_they_hold(name: str):
    spec = load_spec(name)
    found = complexity(spec)
    kinds = {(kind.section, kind.name): kind for kind in found.kinds}
    # A picture has as many tokens as patches.
    known = (0,) if spec.embedding.has_length else (1, 2)
    assert found.whole.growth["prefill"].exponent in known
    for kind in found.kinds:
        assert kind.growth["prefill"].exponent in known
        assert kind.overtakes is None or not spec.embedding.has_length
        overtakes = kind.overtakes
        full = None if overtakes is None else kinds.get((kind.section, overtakes.against))
        if overtakes is None or full is None or full.layers == 0:
            continue
        for form, at in overtakes.tokens.items():
            mine, theirs = getattr(kind.costs, form), getattr(full.costs, form)
            for n in (1, 2, 3, 63, 1000, 12345) if at is None else (at, at + 1, at + 64, 2 * at, 1 << 30):
                env = {"batch": 1, "n": n}
                assert (evaluate(mine, env) < evaluate(theirs, env)) or at is None
            if at is not None and at > 1:
                env = {"batch": 1, "n": at - 1}
                assert evaluate(mine, env) >= evaluate(theirs, env)


def test_without_full_attention_a_gqa_with_as_many_heads_as_wide_is_made():
    mamba = kind_of("mamba2-2.7b", "mamba")
    assert mamba.overtakes is not None
    # 80 heads of 64 channels, as its state has.
    assert mamba.overtakes.against == "gqa of 80 x 64"
    text = TINY.format(mixer="{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sliding_window: 6}")
    (window, _) = complexity(loads_spec(text)).kinds
    assert window.overtakes is not None
    assert window.overtakes.against == "gqa of 4 x 8"
    assert window.overtakes.tokens["decode_flops"] == window.overtakes.tokens["cache_bytes"] == 7
    (full, _) = complexity(
        loads_spec(TINY.format(mixer="{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}"))
    ).kinds
    assert full.is_full_attention
    assert full.overtakes is None


TINY = """\
spec_version: 1
name: tiny
tokenizer: {{kind: external, vocab_size: 40}}
embedding: {{hidden_size: 16, tie_word_embeddings: true}}
position: none
norm: {{kind: rms_norm, eps: 1e-5}}
mixers:
  attn: {mixer}
ffns:
  mlp: {{kind: swiglu, intermediate_size: 24}}
stack: {{num_layers: 2, block: pre_norm, mixer: attn, ffn: mlp}}
"""


def test_bytes_are_weights_cache_and_what_goes_in_and_out_once():
    text = TINY.format(mixer="{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}")
    found = complexity(loads_spec(text), lengths=[100], batch_size=3)
    attn, mlp = found.kinds
    # Widths in bfloat16: x 16; q 32, k and v 16 each; the attention reads them and writes 32; o reads 32 and writes 16.
    projections, activations = (
        16 * 32 + 2 * 16 * 16 + 32 * 16,
        (16 + 32) + 2 * (16 + 16) + (32 + 16 + 16 + 32) + (32 + 16),
    )
    row = 2 * 2 * 8
    assert attn.at[100]["decode"].bytes == 2 * (projections + 3 * activations + 3 * 100 * row)
    assert attn.at[100]["prefill"].bytes == 2 * (projections + 300 * activations + 3 * 100 * row)
    weights, moved = 3 * 16 * 24, 2 * (16 + 24) + (24 + 16)
    assert mlp.at[100]["decode"].bytes == 2 * (weights + 3 * moved)
    assert mlp.at[100]["decode"].flops == 3 * 2 * weights
    assert mlp.at[100]["decode"].flops_per_byte == 6 * weights / (2 * (weights + 3 * moved))


def test_a_mixture_reads_the_experts_that_its_tokens_choose_and_no_more():
    moe = kind_of("kimi-linear-48b-a3b", "moe")
    expert = 3 * 2304 * 1024 * 2
    read = [evaluate(moe.costs.decode_bytes, {"n": 9, "batch": batch}) for batch in (1, 2, 3, 32, 33)]
    steps = [after - before for before, after in pairwise(read)]
    # Eight experts a token, until all 256 are read.
    assert steps[0] == steps[1] > 8 * expert
    assert steps[3] == steps[0] - 8 * expert
    assert steps[2] == 29 * steps[0]


def test_a_fixed_state_is_read_and_written_and_rows_are_read():
    kda = kind_of("kimi-linear-48b-a3b", "kda")
    state = 32 * 128 * 128 * 4 + 3 * (3 * 4096) * 2
    assert evaluate(kda.costs.cache_bytes, {"n": 5, "batch": 1}) == state
    more = [evaluate(kda.costs.decode_bytes, {"n": 5, "batch": batch}) for batch in (1, 2)]
    less = [evaluate(kda.costs.prefill_bytes, {"n": 1, "batch": batch}) for batch in (1, 2)]
    # In one token's prefill the same is moved, less the state that is not there to be read.
    assert (more[1] - more[0]) - (less[1] - less[0]) == state


def test_attention_to_chosen_keys_reads_no_others():
    dsa = kind_of("deepseek-v3.2", "dsa").costs.decode_bytes
    read = [evaluate(dsa, {"n": n, "batch": 1}) for n in (2046, 2047, 2048, 2049, 100_000, 100_001)]
    # A row of latents beside an index key of 128 channels, until 2048 rows are chosen; then the index key alone.
    assert read[1] - read[0] == read[2] - read[1] == 2 * (576 + 128)
    assert read[3] - read[2] == read[5] - read[4] == 2 * 128


def test_a_layer_that_reads_the_cache_of_another_keeps_none_and_reads_the_same_rows():
    kinds = {kind.name: kind for kind in complexity("demo-yoco").kinds}
    assert [str(one) for one in kinds["reuse"].growth.values()] == ["O(n^2)", "O(n)", "-"]
    slopes = [
        evaluate(kinds[name].costs.decode_bytes, {"n": 1001, "batch": 1})
        - evaluate(kinds[name].costs.decode_bytes, {"n": 1000, "batch": 1})
        for name in ("global", "reuse")
    ]
    # Keys and values of four heads of 128 channels in a byte each.
    assert slopes == [2 * 4 * 128] * 2


def test_a_mixer_of_several_ops_is_compared_by_the_one_with_heads():
    csa = kind_of("deepseek-v4-flash", "csa").overtakes
    assert csa is not None
    assert csa.against == "gqa of 64 x 512"


STACKS = """\
spec_version: 1
name: tiny
tokenizer: {kind: external, vocab_size: 40}
embedding: {hidden_size: 16, tie_word_embeddings: true}
position: none
norm: {kind: rms_norm, eps: 1e-5}
mixers:
  self: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8}
  near: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8, sliding_window: 10}
  over: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 24}
"""


def test_an_encoder_has_no_decode_step_and_a_decoder_reads_what_it_gave():
    text = f"{STACKS}encoder: {{num_layers: 2, block: pre_norm, mixer: near self, ffn: mlp}}\n"
    text += "decoder: {num_layers: 3, block: pre_norm, mixer: self, cross: over, ffn: mlp}\n"
    spec = loads_spec(text)
    found = complexity(spec, lengths=[50])
    growths = {
        (kind.section, kind.family, kind.name): [str(one) for one in kind.growth.values()] for kind in found.kinds
    }
    assert growths == {
        ("encoder", "mixer", "near"): ["O(n·w)", "-", "-"],
        ("encoder", "mixer", "self"): ["O(n^2)", "-", "-"],
        ("encoder", "ffn", "mlp"): ["O(n)", "-", "-"],
        ("decoder", "mixer", "self"): ["O(n^2)", "O(n)", "O(n)"],
        ("decoder", "cross", "over"): ["O(n^2)", "O(n)", "O(n)"],
        ("decoder", "ffn", "mlp"): ["O(n)", "O(1)", "-"],
    }
    assert [kind.layers for kind in found.kinds] == [1, 2, 1, 3, 3, 3]
    numbers = estimate(spec, max_model_len=50, source_len=50).flops.numbers
    assert found.whole.at[50]["prefill"].flops == numbers["prefill"]
    assert found.whole.at[50]["decode"].flops == numbers["decode"]
    # Keys and values of 4 x 8 channels in bfloat16, kept for each token of the encoder.
    over = next(kind for kind in found.kinds if kind.family == "cross")
    assert evaluate(over.costs.cache_bytes, {"n": 50, "batch": 1}) == 50 * 2 * 32 * 2


def test_an_encoder_alone_costs_a_forward_pass_and_its_windows_pay_from_the_length_that_counting_gives():
    spec = loads_spec(f"{STACKS}encoder: {{num_layers: 2, block: pre_norm, mixer: near, ffn: mlp}}\n")
    found = complexity(spec, lengths=[50])
    near, _ = found.kinds
    assert found.whole.at[50]["prefill"].flops == estimate(spec, max_model_len=50).flops.numbers["forward"]
    assert found.whole.at[50]["decode"].flops == found.whole.at[50]["decode"].bytes == 0
    # Five keys on each side and the own one: the seventh token is the first that anybody cannot see.
    assert near.overtakes is not None
    assert near.overtakes.against == "gqa of 4 x 8"
    assert near.overtakes.tokens == {"prefill_flops": 7}
    full = complexity(
        loads_spec(f"{STACKS}encoder: {{num_layers: 2, block: pre_norm, mixer: self, ffn: mlp}}\n")
    ).kinds[0]
    assert last_loss(near.costs.prefill_flops, full.costs.prefill_flops, 500) == 6


@pytest.mark.parametrize("lengths", [[0], [4, -1]])
def test_lengths_are_positive(lengths: list[int]):
    with pytest.raises(ArchcError, match="a length should be at least 1"):
        complexity("tiny-llama", lengths=lengths)
    with pytest.raises(ArchcError, match="batch_size should be at least 1"):
        complexity("tiny-llama", batch_size=0)


def test_it_is_plain_data_and_a_function_of_the_package():
    assert archc.complexity is complexity
    data = archc.complexity(load_spec("tiny-kimi-linear"), lengths=[64, 64]).to_json()
    assert json.loads(json.dumps(data)) == data
    assert data["options"]["lengths_tokens"] == [64]
    assert {kind["name"] for kind in data["kinds"]} == {"kda", "mla", "dense", "moe"}
    assert data["kinds"][0]["at"][0]["length_tokens"] == 64
