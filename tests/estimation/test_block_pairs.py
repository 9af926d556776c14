"""Pairs of attention to chosen blocks in closed form against a count over masks, and against what the paper says a step reads."""

from __future__ import annotations

import random

import pytest

from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.ir.size import evaluate
from archc.ops.blocks import chosen_pairs_twice, compressed_pairs_twice, compressed_rows, earlier_blocks_twice
from archc.spec.load import load_spec

SIZES = [(past, seq) for past in (0, 1, 3, 4, 5, 8, 11, 12, 23) for seq in (1, 2, 4, 5, 8, 9, 17)]
BLOCKS = [(1, 1), (1, 5), (4, 1), (4, 2), (4, 3), (5, 2), (4, 40), (40, 3)]
COMPRESSED = [(2, 1), (2, 2), (4, 2), (4, 4), (6, 2), (9, 3), (40, 8)]


@pytest.mark.parametrize(("block", "count"), BLOCKS)
def test_needed_pairs_are_the_ones_of_a_mask_whatever_is_chosen(block: int, count: int):
    draw = random.Random(0)
    formula = chosen_pairs_twice("needed", "many", block, count)
    for past, seq in SIZES:
        ones = 0
        for token in range(past, past + seq):
            own = token // block
            chosen = {own, *draw.sample(range(own), min(own, count - 1))}
            ones += sum(key // block in chosen for key in range(token + 1))
        assert evaluate(formula, {"past": past, "seq": seq}) == 2 * ones, (past, seq)


@pytest.mark.parametrize(("block", "count"), BLOCKS)
def test_one_token_computes_the_rows_of_its_blocks_and_many_compute_all(block: int, count: int):
    for past, seq in SIZES:
        env = {"past": past, "seq": seq}
        assert evaluate(chosen_pairs_twice("dense", "many", block, count), env) == 2 * seq * (past + seq)
        one = evaluate(chosen_pairs_twice("dense", "few", block, count), {"past": past, "seq": 1})
        assert one == 2 * min(past + 1, count * block)


@pytest.mark.parametrize(("block", "stride"), COMPRESSED)
def test_a_compressed_row_is_seen_from_its_last_token_on(block: int, stride: int):
    for past, seq in SIZES:
        env, total = {"past": past, "seq": seq}, past + seq
        ends = [start + block - 1 for start in range(0, total, stride) if start + block <= total]
        assert evaluate(compressed_rows(past, block, stride), {}) == sum(end < past for end in ends)
        ones = sum(end <= token for token in range(past, total) for end in ends)
        assert evaluate(compressed_pairs_twice("needed", block, stride), env) == 2 * ones, (past, seq)
        assert evaluate(compressed_pairs_twice("dense", block, stride), env) == 2 * seq * len(ends)


@pytest.mark.parametrize("block", [1, 4, 5, 40])
def test_gates_are_products_with_the_blocks_before_a_tokens_own(block: int):
    for past, seq in SIZES:
        env = {"past": past, "seq": seq}
        before = [token // block for token in range(past, past + seq)]
        assert evaluate(earlier_blocks_twice("needed", block), env) == 2 * sum(before)
        assert evaluate(earlier_blocks_twice("dense", block), env) == 2 * seq * max(before)


@pytest.mark.parametrize(
    ("tokens", "published"), [(8192, 2048), (16384, 2560), (32768, 3584), (65536, 5632)]
)  # arXiv 2502.11089, table 4
def test_a_step_reads_what_the_paper_says(tokens: int, published: int):
    layers = expand(load_spec("nsa-demo")).root.calls()
    body = next(item.body for layer in layers for item in layer.body.calls() if item.body.label == "nsa")
    env = {"batch": 1, "seq": 1, "past": tokens - 1}
    read = 0
    for node in body.nodes():
        for role, state in node.states.items():
            if role in ("key", "compressed_key"):
                read += evaluate(node.op.read_elements(role, state), env) // (4 * 192)
    # The paper has a compressed row for every stride of the text, and its last block ends one stride early.
    assert read == published - 1


def test_ten_times_the_text_costs_about_ten_times_as_much_and_full_attention_far_more():
    near, far = (estimate("moba-demo", max_model_len=n).flops.by_layer for n in (100_000, 1_000_000))
    growth = {kind: far[kind]["prefill"] / near[kind]["prefill"] for kind in near if kind}
    assert growth["moba + mlp"] < 12 < 40 < growth["attn + mlp"]
    # A product with a mean for every 4096 tokens is all that grows with the text.
    assert far["moba + mlp"]["decode"] < 1.01 * near["moba + mlp"]["decode"]
