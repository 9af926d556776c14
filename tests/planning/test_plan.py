"""Plans of training: bytes are the estimate's, pieces are torch's, exchanges are those of papers, and what can't be is told."""

from math import prod

import pytest

import archc
from archc.errors import SpecError
from archc.planning.parallel import Parallel
from archc.planning.plan import plan
from archc.planning.trainable import LIMITS, training_limits
from archc.planning.training.estimate import estimate_training

HELD = (
    "stage",
    "elements",
    "parameter_bytes",
    "gathered_bytes",
    "buffer_bytes",
    "master_bytes",
    "gradient_bytes",
    "gradient_in_flight_bytes",
    "optimizer_bytes",
    "host_bytes",
)
PLANS = [
    ("llama-3-8b", Parallel(tp=8, dp=2), {}),
    ("llama-3-8b", Parallel(tp=16), {"zero": 0}),
    ("llama-3.1-405b", Parallel(tp=8, pp=16, dp=4), {"zero": 1}),
    ("kimi-linear-48b-a3b", Parallel(tp=4, pp=2, dp=2), {"zero": 2}),
    ("kimi-linear-48b-a3b", Parallel(ep=8, dp=8), {"optimizer": "muon"}),
    ("deepseek-v3", Parallel(ep=64, dp=64, pp=8), {}),
    ("deepseek-v3", Parallel(tp=2, ep=4, dp=2), {"zero": 0, "dtype": "float32"}),
    ("qwen3-235b-a22b", Parallel(tp=4, dp=16, cp=2, pp=4), {"grad_dtype": "float32"}),
    ("gpt-oss-20b", Parallel(tp=8, ep=2), {"zero": 3, "master_weights": False}),
    ("granite-4.0-h-tiny", Parallel(tp=4, dp=2), {"optimizer": "adafactor"}),
    ("qwen3-next-80b-a3b", Parallel(pp=4, dp=3), {"optimizer": "sgd"}),
    ("t5-base", Parallel(tp=2, pp=2, dp=2), {"zero": 1}),
    ("gemma-3-4b", Parallel(cp=2, dp=2), {}),
    ("minimax-text-01", Parallel(tp=8, dp=4), {"optimizer": "adamw8bit"}),
    ("command-r7b", Parallel(), {}),
]


def said(each):
    name, parallel, options = each
    return f"{name} {parallel} {options}"


@pytest.mark.parametrize(("name", "parallel", "options"), PLANS, ids=[said(each) for each in PLANS])
def test_bytes_are_those_of_the_estimate_with_the_same_options(name, parallel, options):
    estimated = estimate_training(
        name,
        parallel=parallel,
        sequence_parallel=parallel.tp > 1,
        max_model_len=1024,
        recompute="full",
        **{"zero": 3} | options,
    )
    planned = plan(name, parallel, **options)
    expected = [{key: stage.to_json()[key] for key in HELD} for stage in estimated.stages]
    assert [{key: stage.to_json()[key] for key in HELD} for stage in planned.stages] == expected
    assert [len(stage.layers) for stage in planned.stages] == [stage.layers for stage in estimated.stages]


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "kimi-k3", "t5-base", "gpt2"])
def test_rows_of_weights_are_all_parameters_whatever_the_plan(name):
    parameters = archc.estimate(name).parameters.total
    for parallel in (Parallel(), Parallel(tp=4, dp=2), Parallel(pp=3)):
        rows = plan(name, parallel).weights
        tied = {row.name: row.layers for row in rows if not row.layer}
        counted = sum(prod(row.whole) * (row.layers if row.layer else 1) for row in rows if row.trainable)
        assert counted == parameters
        # What stands outside of layers is a row of its own, even on two stages.
        assert all(count <= parallel.pp for count in tied.values())


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "parallel"),
    [
        ("llama-3-8b", Parallel(tp=8, dp=3)),
        ("kimi-linear-48b-a3b", Parallel(tp=4, dp=2)),
        ("deepseek-v3", Parallel(ep=16, dp=32)),
        ("gpt2", Parallel(tp=4, dp=2)),
    ],
    ids=str,
)
def test_pieces_are_those_that_torch_cuts(name, parallel):
    torch = pytest.importorskip("torch")
    found = plan(name, parallel)
    assert any(row.cuts for row in found.weights)
    for row in found.weights:
        piece = torch.empty(row.whole, device="meta")
        for dim, _, _, ways in row.cuts:
            piece = piece.chunk(ways, dim)[0]
        assert tuple(piece.shape) == row.local, row.name
        ranks = parallel.dp // (parallel.ep if any(by == "ep" for _, _, by, _ in row.cuts) else 1)
        if row.trainable:
            piece = piece.chunk(ranks, 0)[0]
        assert tuple(piece.shape) == row.rests, row.name


def test_what_stands_on_several_ranks_says_why():
    rows = {row.name: row for row in plan("tiny-kimi-linear", Parallel(tp=2, dp=2), zero=1).weights}
    assert rows["mixer.q_proj.weight"].cuts == ((0, "heads", "tp", 2),)
    # Two copies have it, and ZeRO-1 leaves parameters whole.
    assert (rows["mixer.q_proj.weight"].held_by, rows["mixer.q_proj.weight"].why) == (2, "")
    assert (rows["mixer_norm.weight"].held_by, rows["mixer_norm.weight"].why) == (
        4,
        "no axis along which it could be cut",
    )
    cut = {row.name: row for row in plan("tiny-kimi-linear", Parallel(tp=2, dp=2), zero=3).weights}
    assert (cut["mixer.q_proj.weight"].held_by, cut["mixer_norm.weight"].held_by) == (1, 2)
    # A bias of routers is no parameter, and FSDP2 leaves buffers whole.
    assert cut["ffn.router.e_score_correction_bias"].held_by == 4


def test_replicated_bytes_are_the_rows_that_other_ranks_hold_too():
    for name, parallel, zero in (
        ("tiny-kimi-linear", Parallel(tp=2, dp=2), 3),
        ("tiny-kimi-linear", Parallel(tp=2, dp=2), 1),
        ("tiny-deepseek-v3", Parallel(ep=4, dp=4), 3),
    ):
        found = plan(name, parallel, zero=zero)
        by_hand = sum(row.resting_bytes * row.layers for row in found.weights if row.held_by > 1)
        assert [stage.replicated_bytes for stage in found.stages] == [by_hand]


def test_pieces_of_caches_are_cut_by_heads_and_tokens():
    rows = {row.name: row for row in plan("llama-3-8b", Parallel(tp=8, cp=2)).states}
    assert str(rows["mixer.attention.key"].local) == "(batch, 1, ceil((past + seq)/2), 128)"
    latent = {row.name: row for row in plan("deepseek-v3", Parallel(tp=8)).states}["mixer.attention.latent"]
    assert (latent.local, latent.copies, latent.why) == (latent.whole, 8, "all heads read it")


def exchanges(name, parallel, **options):
    return {(each.layer, each.leaf, each.kind, each.by) for each in plan(name, parallel, **options).communication}


def test_a_layer_of_llama_adds_up_two_values_as_megatron_does():
    found = plan("llama-3-8b", Parallel(tp=8)).communication
    assert [(each.layer, each.leaf, each.kind, each.layers) for each in found] == [
        ("", "embed_tokens", "all_reduce", 1),
        ("attn + mlp", "mixer.o_proj", "all_reduce", 32),
        ("attn + mlp", "ffn.down_proj", "all_reduce", 32),
        ("", "lm_head", "loss", 1),
    ]
    assert {each.token_bytes for each in found if each.kind == "all_reduce"} == {4096 * 2}


def test_branches_side_by_side_and_shared_experts_are_added_up_once():
    assert ("local + mlp", "mixer.o_proj + ffn.down_proj", "all_reduce", "tp") in exchanges(
        "command-r7b", Parallel(tp=2)
    )
    assert ("mla + moe", "ffn.experts + shared_experts.down_proj", "all_reduce", "tp") in exchanges(
        "deepseek-v3", Parallel(tp=2)
    )


def test_where_heads_are_too_few_to_train_sums_are_told_all_the_same():
    found = plan("llama-3-8b", Parallel(tp=16))
    assert found.limits == ["8 kv_heads of attn on tp 16: a kv_head held by several ranks is not trained"]
    assert [each.leaf for each in found.communication if each.kind == "all_reduce"] == [
        "embed_tokens",
        "mixer.o_proj",
        "ffn.down_proj",
    ]


def test_experts_exchange_tokens_and_stages_hand_on_streams():
    found = plan("deepseek-v3", Parallel(ep=64, dp=64, pp=8)).communication
    (experts,) = [each for each in found if each.kind == "all_to_all"]
    # 58 layers; eight experts of 7168 bfloat16 numbers, there and back.
    assert (experts.layers, experts.token_bytes) == (58, 2 * 8 * 7168 * 2)
    sends = [each for each in found if each.kind == "send"]
    assert [(each.leaf, each.token_bytes) for each in sends] == [
        (f"stage {stage} to stage {stage + 1}", 7168 * 2) for stage in range(7)
    ]
    assert {each.kind for each in plan("tiny-llama", Parallel(cp=2)).communication} == {"all_gather"}
    assert plan("tiny-llama", Parallel(dp=2)).communication == []


def test_ranks_of_cp_gather_keys_in_the_dtype_of_the_products_and_shared_ones_again():
    found = {each.layer: each for each in plan("demo-yoco", Parallel(cp=2)).communication}
    # Keys and values of 4 heads of 128 in bfloat16, though the spec's caches are of a byte.
    assert {name: (each.layers, each.token_bytes) for name, each in found.items()} == {
        "local + mlp": (11, 2 * 4 * 128 * 2),
        "global + mlp": (1, 2 * 4 * 128 * 2),
        "reuse + mlp": (12, 2 * 4 * 128 * 2),
    }
    (latent,) = {each.token_bytes for each in plan("deepseek-v3", Parallel(cp=2)).communication}
    assert latent == (512 + 64) * 2


def test_every_reason_against_a_plan_is_told():
    with pytest.raises(SpecError) as caught:
        plan("tiny-kimi-linear", Parallel(tp=3, cp=2), optimizer="adamm", zero=4, dtype="int8", gpus=7)
    messages = [problem.message for problem in caught.value.problems]
    for part in (
        "7 gpus are not what tp 3, cp 2 takes, 6",
        "dtype 'int8'",
        "Did you mean adamw",
        "zero should be 0, 1, 2 or 3 (found 4)",
        "2 heads of kda (layers.0) can't be cut into 3 (tp)",
        "64 feed-forward channels of moe",
        "linear_attention of kda carries a recurrent state",
    ):
        assert sum(part in message for message in messages) == 1, part
    with pytest.raises(SpecError, match="ep 3 doesn't divide"):
        plan("tiny-deepseek-v3", Parallel(ep=3, dp=2))
    with pytest.raises(SpecError, match="8 layers can't be cut into 9 stages"):
        plan("tiny-kimi-linear", Parallel(pp=9))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "parallel"),
    [
        ("tiny-llama", Parallel(tp=4)),
        ("tiny-deepseek-v3", Parallel(tp=2, ep=2, dp=2)),
        ("tiny-deepseek-v3", Parallel(tp=2, ep=4, dp=2)),
        ("vit-base-patch16-224", Parallel()),
        ("bert-base-uncased", Parallel(cp=2)),
        ("t5-base", Parallel(cp=2)),
    ],
    ids=str,
)
def test_what_a_plan_says_train_can_not_run_train_refuses(name, parallel):
    pytest.importorskip("torch")
    from archc.expansion import as_graph
    from archc.training.options import TrainOptions
    from archc.training.prepare import refuse_what_cannot_be

    found = plan(name, parallel)
    assert found.limits
    assert not found.is_trainable
    with pytest.raises(SpecError) as caught:
        refuse_what_cannot_be(as_graph(name), TrainOptions(steps=1, parallel=parallel))
    assert [problem.message for problem in caught.value.problems] == found.limits


def test_every_limit_is_met_by_some_plan_and_one_rank_has_none():
    met = {
        limit.__name__
        for name, parallel in (
            ("tiny-llama", Parallel(tp=4)),
            ("tiny-deepseek-v3", Parallel(tp=2, ep=2, dp=2)),
            ("vit-base-patch16-224", Parallel()),
            ("bert-base-uncased", Parallel(cp=2)),
        )
        for limit in LIMITS
        if list(limit(archc.expand(archc.load_spec(name)), parallel, _sharding(name, parallel)))
    }
    assert {"_texts", "_logits", "_few_kv_heads", "_tensor_and_expert", "_context"} <= met
    for name in ("tiny-llama", "tiny-kimi-linear", "tiny-deepseek-v3", "tiny-gpt-oss", "tiny-qwen3-next", "tiny-t5"):
        assert training_limits(archc.expand(archc.load_spec(name)), Parallel()) == []


def _sharding(name, parallel):
    from archc.planning.sharding import shard

    return shard(archc.expand(archc.load_spec(name)), parallel, vocab_multiple=1)


def test_gpus_that_no_option_speaks_of_hold_copies():
    assert plan("tiny-llama", Parallel(tp=2), gpus=8).parallel == Parallel(tp=2, dp=4)
    assert archc.plan("tiny-llama").parallel.ranks == 1
