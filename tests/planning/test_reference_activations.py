"""Megatron-LM's formula of activation memory gives its paper's numbers, and what a graph differs by is named term by term."""

import pytest

import archc
from archc.errors import SpecError
from archc.estimation.activations import measure_activations
from archc.planning.parallel import Parallel
from archc.planning.training.estimate import estimate_training
from archc.planning.training.reference_activations import megatron_layer_bytes

GPT3 = {"tokens": 2048, "batch_size": 1, "hidden_size": 12288, "num_heads": 96}
MT_NLG = {"tokens": 2048, "batch_size": 1, "hidden_size": 20480, "num_heads": 128}


def per_token(model, **options):
    """Bytes over s b h."""
    return megatron_layer_bytes(**model, **options) / (model["tokens"] * model["batch_size"] * model["hidden_size"])


@pytest.mark.parametrize(("model", "matrix", "saved"), [(GPT3, 80, 0.70), (MT_NLG, 64, 0.65)])
def test_the_attention_matrix_is_the_papers_part_of_gpt_3_and_mt_nlg(model, matrix, saved):
    """Section 5: 5 a s / h is 80 and 64; selective recomputation saves 70 % and 65 %."""
    assert per_token(model) == 34 + matrix
    assert per_token(model, recompute="selective") == 34
    assert 1 - 34 / (34 + matrix) == pytest.approx(saved, abs=0.005)


def test_every_row_of_the_papers_table_of_forms():
    """Table 2, of GPT-3 over t = 8."""
    t = 8
    assert per_token(GPT3, tp=t) == 10 + 24 / t + 80 / t
    assert per_token(GPT3, tp=t, sequence_parallel=True) == (34 + 80) / t
    assert per_token(GPT3, tp=t, recompute="selective") == 10 + 24 / t
    assert per_token(GPT3, tp=t, sequence_parallel=True, recompute="selective") == 34 / t
    assert per_token(GPT3, tp=t, recompute="full") == 2


@pytest.mark.parametrize("model", [GPT3, MT_NLG])
def test_sequence_parallelism_and_selective_recomputation_save_a_factor_of_five(model):
    """The abstract's 5x, over tensor parallelism alone."""
    before, after = per_token(model, tp=8), per_token(model, tp=8, sequence_parallel=True, recompute="selective")
    assert before / after == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize(("name", "width", "heads", "layers"), [("gpt2", 768, 12, 12), ("gpt2-xl", 1600, 25, 48)])
def test_a_gpt_differs_from_the_formula_by_named_terms(name, width, heads, layers):
    """No dropout: 2 s b h and a s^2 b of masks; fused attention: 4 a s^2 b of matrices; statistics of norms and log-sums come."""
    batch, seq = 3, 1024
    graph = archc.expand(archc.load_spec(name))
    found = measure_activations(graph, batch_size=batch, seq_len=seq, dtype="bfloat16").by_layer()
    (kind,) = (label for label in found if label != "outside layers")
    token, square = batch * seq * width, batch * heads * seq * seq
    formula = megatron_layer_bytes(tokens=seq, batch_size=batch, hidden_size=width, num_heads=heads)
    masks = 2 * token + square
    matrices = 2 * square + 2 * square
    statistics = batch * seq * (2 * 2 * 4) + batch * seq * heads * 4
    assert found[kind] == layers * (formula - masks - matrices + statistics)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_under_tensor_parallelism_the_same_terms_are_cut(sequence_parallel):
    """10 + 24 / t less the two masks of dropout, 8 + 24 / t; everything over t with sequence parallelism."""
    width, heads, seq, t = 1024, 16, 1024, 8
    spec = archc.load_spec(
        "gpt2",
        [
            f"embedding.hidden_size={width}",
            f"mixers.attn.num_heads={heads}",
            f"mixers.attn.num_kv_heads={heads}",
            f"ffns.mlp.intermediate_size={4 * width}",
        ],
    )
    found = estimate_training(
        spec, max_model_len=seq, dtype="bf16", parallel=Parallel(tp=t), sequence_parallel=sequence_parallel
    ).stages[0]
    (kind,) = (label for label in found.activations if label != "outside layers")
    statistics = 4 * heads / t + (16 / t if sequence_parallel else 16)
    parts = (32 / t if sequence_parallel else 8 + 24 / t) * width
    assert found.activations[kind] == 12 * seq * (parts + statistics)


def test_full_recomputation_keeps_the_formulas_two_bytes():
    found = estimate_training("gpt2-xl", max_model_len=1024, dtype="bf16", recompute="full").stages[0]
    (kind,) = (label for label in found.activations if label != "outside layers")
    assert found.activations[kind] == 48 * megatron_layer_bytes(
        tokens=1024, batch_size=1, hidden_size=1600, num_heads=25, recompute="full"
    )


def test_the_formula_can_be_asked_for_in_place_of_the_graph():
    found = estimate_training("gpt2-xl", max_model_len=1024, dtype="bf16", activations="megatron")
    expected = 48 * megatron_layer_bytes(tokens=1024, batch_size=1, hidden_size=1600, num_heads=25)
    assert found.stages[0].activation_bytes == expected
    assert any("arXiv 2205.05198" in note for note in found.notes)


def test_the_formula_is_refused_where_there_is_no_softmax_attention():
    with pytest.raises(SpecError, match="the formula is for softmax attention over all heads, and kda"):
        estimate_training("kimi-linear-48b-a3b", max_model_len=1024, activations="megatron")
