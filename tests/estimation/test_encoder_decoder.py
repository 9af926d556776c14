"""What an encoder and a decoder cost, against figures that were counted by hand from their papers' shapes."""

from __future__ import annotations

from typing import Any

import pytest

from archc.estimation.estimate import estimate

WIDTH, INNER, VOCABULARY = 512, 2048, 37_000
"""Of the base model of arXiv 1706.03762, Table 3."""


def test_the_transformer_of_2017_has_the_weights_of_its_formulas() -> None:
    attention = 4 * WIDTH * WIDTH
    feed_forward = 2 * WIDTH * INNER + INNER + WIDTH
    norm = 2 * WIDTH
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    # One table embeds both texts and is the head.
    assert estimate("transformer-base-2017").parameters.total == encoder + decoder + VOCABULARY * WIDTH == 63_045_632


def test_a_token_of_the_encoder_and_one_of_the_decoder_take_keys_and_values_in_every_decoder_layer() -> None:
    found = estimate("t5-base", max_model_len=100, source_len=300).cache
    of_a_token_bytes = 12 * 2 * 12 * 64 * 2
    assert found.bytes_per_token == found.total("bytes_per_source_token") == of_a_token_bytes == 36_864
    assert found.used_bytes == 400 * of_a_token_bytes


@pytest.mark.parametrize(
    ("name", "layers"), [("t5-base", {"self": 12, "to_encoder": 12}), ("transformer-base-2017", {"attn": 6})]
)
def test_layers_of_an_encoder_keep_nothing_and_are_not_counted_among_those_that_do(
    name: str, layers: dict[str, int]
) -> None:
    kinds: list[dict[str, Any]] = estimate(name).to_json()["cache"]["by_kind"]
    assert {kind["name"]: kind["layers"] for kind in kinds} == layers


def test_the_work_is_that_of_linears_and_pairs_of_tokens() -> None:
    tokens, source = 40, 70
    encoder = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    per_token = 12 * (4 * 768 * 768 + 2 * 768 * 768 + 2 * 768 * 3072)
    keys_of_the_encoder = 12 * 2 * 768 * 768
    pairs = 12 * 4 * 768
    flops = estimate("t5-base", max_model_len=tokens, source_len=source).flops.numbers
    assert flops["prefill"] == (
        2 * (encoder + keys_of_the_encoder) * source
        + 2 * per_token * tokens
        + pairs * (source * source + tokens * source + tokens * (tokens + 1) // 2)
        + 2 * 768 * 32_128
    )
    # A step reads what the decoder has kept of the encoder, and runs no part of it.
    assert flops["decode"] == 2 * per_token + pairs * (tokens + source) + 2 * 768 * 32_128
