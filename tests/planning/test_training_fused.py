"""The loss that holds no logits, as estimates count it: gradients of the stream and of the head, and one chunk at work."""

import pytest

from archc.errors import SpecError
from archc.planning.parallel import Parallel
from archc.planning.training.estimate import estimate_training
from archc.planning.training.loss import chunk_tokens

TOKENS, WIDTH, ROWS = 8192, 4096, 128_256
"""A sequence of llama-3-8b, whose embedding is not tied."""


def rank_of(name, **options):
    return estimate_training(name, loss="fused", **options).stages[0]


def test_it_keeps_the_gradients_of_the_stream_and_of_norm_and_head():
    found = rank_of("llama-3-8b", max_model_len=TOKENS).loss
    assert found.saved == 2 * TOKENS * WIDTH + 2 * (ROWS * WIDTH + WIDTH)
    assert found.waiting == 0


def test_nothing_behind_the_last_layer_is_an_activation():
    plain = estimate_training("llama-3-8b", max_model_len=TOKENS).stages[0]
    fused = rank_of("llama-3-8b", max_model_len=TOKENS)
    # What is left outside of layers are the ids, which the embedding keeps.
    assert fused.activations["outside layers"] == 8 * TOKENS < plain.activations["outside layers"]
    assert plain.activations["attn + mlp"] == fused.activations["attn + mlp"]


def test_a_chunk_has_2_to_the_27_logits_where_nothing_else_is_asked_and_256_tokens_at_least():
    assert chunk_tokens(ROWS) == 1046
    assert chunk_tokens(1 << 20) == 256
    assert rank_of("llama-3-8b", max_model_len=TOKENS).loss.logits == 2 * 1046 * ROWS
    assert rank_of("llama-3-8b", max_model_len=TOKENS, loss_chunk=512).loss.logits == 2 * 512 * ROWS


def test_a_chunk_at_work_has_three_tensors_of_its_logits_or_a_second_gradient_of_the_head():
    def most(chunk):
        found = rank_of("llama-3-8b", max_model_len=TOKENS, loss_chunk=chunk).loss
        return found.logits + found.saved + found.working

    head, stream = 2 * (ROWS * WIDTH + WIDTH), 2 * TOKENS * WIDTH
    # Chunks add up in float32.
    assert most(4096) == stream + stream // 2 + 2 * head + 3 * 4 * 4096 * ROWS
    assert most(256) == stream + stream * 31 // 32 + 2 * head + 2 * 256 * ROWS + head


def test_a_tied_tables_gradient_waits_for_the_embeddings():
    found = rank_of("tiny-llama", max_model_len=64, dtype="float32").loss
    assert found.waiting == 4 * 1024 * 128


def test_ranks_of_tp_share_the_heads_gradient():
    found = rank_of("llama-3-8b", max_model_len=TOKENS, parallel=Parallel(tp=8)).loss
    assert found.saved == 2 * TOKENS * WIDTH + 2 * (ROWS // 8 * WIDTH + WIDTH)


@pytest.mark.parametrize("name", ["llama-3-8b", "kimi-linear-48b-a3b", "gemma-3-4b", "t5-base"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_lines_sum_to_the_peak(name, recompute):
    options = {"max_model_len": 512, "recompute": recompute, "parallel": Parallel(pp=2), "micro_batches": 4}
    for stage in estimate_training(name, loss="fused", **options).stages:
        assert sum(stage.rows().values()) == stage.peak_bytes


def test_another_word_is_refused():
    with pytest.raises(SpecError, match="loss: 'fast' is unknown; known: plain and fused"):
        estimate_training("tiny-llama", max_model_len=16, loss="fast")
