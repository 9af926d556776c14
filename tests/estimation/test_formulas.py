"""A formula that is printed gives the number that is printed."""

from __future__ import annotations

import math
from itertools import product

import pytest

from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.spec.load import load_spec, shipped_specs

SIZES = tuple(product((1, 3), (1, 2, 63, 64, 65, 130, 1000)))
NAMES = ("tiny-llama", "tiny-gpt-oss", "tiny-deepseek-v3", "tiny-kimi-linear", "gpt-oss-20b", "kimi-linear-48b-a3b")


def value(text: str, *, batch: int, seq: int, past: int) -> int:
    return eval(text, {"min": min, "ceil": math.ceil}, {"batch": batch, "seq": seq, "past": past})


@pytest.mark.parametrize("name", NAMES)
def test_flop_formulas_give_the_printed_numbers(name: str):
    graph = expand(load_spec(name))
    for batch, length in SIZES:
        data = estimate(graph, batch_size=batch, max_model_len=length).to_json()["flops"]
        formulas = data["formula"]
        for suffix in ("", "_dense"):
            prefill = value(formulas[f"prefill{suffix}"], batch=batch, seq=length, past=-1)
            decode = value(formulas[f"decode{suffix}"], batch=batch, seq=-1, past=length - 1)
            train = value(formulas[f"train_step{suffix}"], batch=batch, seq=length, past=-1)
            chunk = value(formulas[f"prefill_chunk{suffix}"], batch=batch, seq=length, past=0)
            assert prefill == chunk == data[f"prefill{suffix}"]
            assert (decode, train) == (data[f"decode{suffix}"], data[f"train_step{suffix}"])


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_formula_gives_the_used_bytes(name: str):
    graph = expand(load_spec(name))
    for batch, length in SIZES:
        cache = estimate(graph, batch_size=batch, max_model_len=length).cache
        for past in {0, length // 2, length - 1}:
            assert value(cache.formula, batch=batch, seq=length - past, past=past) == cache.used_bytes


@pytest.mark.parametrize("name", shipped_specs())
def test_needed_pairs_never_cost_more_than_dense_ones(name: str):
    numbers = estimate(name, max_model_len=1000).flops.numbers
    steps = ("forward",) if "forward" in numbers else ("prefill", "decode")
    for quantity in (*steps, "train_step"):
        assert 0 < numbers[quantity] <= numbers[f"{quantity}_dense"]


def test_a_prefill_in_pieces_needs_the_same_pairs_as_in_one():
    chunk = estimate("llama-3-8b").to_json()["flops"]["formula"]["prefill_chunk"]
    head = 2 * 4096 * 128256
    whole = value(chunk, batch=1, seq=300, past=0)
    pieces = [value(chunk, batch=1, seq=100, past=past) for past in (0, 100, 200)]
    # Each piece computes the head of its own last token.
    assert sum(pieces) - 2 * head == whole


def test_a_training_step_is_three_forward_passes_with_every_logit():
    found = estimate("llama-3-8b", max_model_len=512).flops.numbers
    other_heads = 511 * 2 * 4096 * 128256
    assert found["train_step"] == 3 * (found["prefill"] + other_heads)
