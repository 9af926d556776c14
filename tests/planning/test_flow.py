"""The graph of one rank of tensor parallelism: what is cut, where ranks exchange, and what is refused."""

from pathlib import Path

import pytest

import archc
from archc.errors import SpecError
from archc.graph.graph import walk_scopes
from archc.graph.verify import verify
from archc.ops.attention import Attention
from archc.ops.linear import EmbeddingRows, Linear
from archc.ops.linear_attention import FixedDecay
from archc.planning.flow import rank_graph
from archc.planning.parallel import Parallel
from archc.planning.partial_sums import added_with_others, gives_parts
from archc.planning.sharding import shard
from archc.planning.timing.work import pieces_of

SPECS = Path(__file__).resolve().parents[2] / "specs"
ONE_HEAD = ("bahdanau-2015", "falcon-7b", "gpt2-xl", "smollm2-135m")
"""Shipped specs whose heads two ranks can't share."""
SHIPPED = sorted(path.stem for path in SPECS.rglob("*.yaml") if path.stem not in ONE_HEAD)


def of_name(name, *overrides):
    return archc.expand(archc.load_spec(name, overrides))


def ops_of(rank, kind):
    return [node.op for _, node in rank.graph.walk() if isinstance(node.op, kind)]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_rank_of_every_shipped_model_has_a_legal_graph_with_the_whole_ones_names(name):
    graph = of_name(name)
    for index in (0, 1):
        rank = rank_graph(graph, Parallel(tp=2), index)
        verify(rank.graph) if not rank.notes else None
        assert list(rank.graph.params()) == list(graph.params())
        assert list(rank.graph.states()) == list(graph.states())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_ranks_weights_and_states_are_those_of_the_plan(name):
    graph = of_name(name)
    rank = rank_graph(graph, Parallel(tp=2), 0)
    planned = shard(graph, Parallel(tp=2), vocab_multiple=1).stages[0]
    shapes = {full: piece.shape for piece in planned.params for full in piece.names}
    gathered = {
        f"{scope}.{node.params[role].name}".removeprefix(".")
        for scope, node in walk_scopes(rank.graph.root, "")
        for role, use in rank.uses.get(node, {}).items()
        if use.kind == "gathered"
    }
    found = {full: param.shape for full, param in rank.graph.params().items()}
    assert {full: shape for full, shape in found.items() if full not in gathered} == {
        full: shape for full, shape in shapes.items() if full not in gathered
    }
    if not rank.notes:
        states = {
            f"{prefix}.{held.path}.{held.state.name}": held.local for held in planned.states for prefix in held.prefixes
        }
        for full, state in rank.graph.states().items():
            assert state.used == states[full].used, full
            assert state.allocated == states[full].allocated, full


@pytest.mark.parametrize("name", SHIPPED)
def test_sums_over_ranks_are_those_that_estimates_time(name):
    graph = of_name(name)
    parallel = Parallel(tp=2)
    rank = rank_graph(graph, parallel, 0)
    pieces = pieces_of(shard(graph, parallel, vocab_multiple=1).stages[0], parallel)
    later = added_with_others(graph.root.items, pieces)
    timed = sum(gives_parts(node, pieces) and node not in later for _, node in graph.walk())
    assert rank.exchanges()["sum_parts"] == timed


def test_heads_channels_and_rows_of_the_vocabulary_are_a_ranks_own():
    rank = rank_graph(of_name("tiny-llama", "tokenizer.vocab_size=1001"), Parallel(tp=2), 1)
    (attention, *_) = ops_of(rank, Attention)
    assert (attention.num_heads, attention.num_kv_heads) == (2, 1)
    assert ops_of(rank, EmbeddingRows) == [EmbeddingRows(num_embeddings=500, width=128, first=501)]
    assert rank.vocab_rows == (501, 1001)
    assert ops_of(rank, Linear)[-1].width == 500


def test_slopes_and_decays_are_those_of_a_ranks_heads():
    whole = of_name("bloom-7b1")
    slopes = next(node.op.slopes for _, node in whole.walk() if isinstance(node.op, Attention))
    for index in range(4):
        (first, *_) = ops_of(rank_graph(whole, Parallel(tp=4), index), Attention)
        assert first.slopes == slopes[8 * index : 8 * index + 8]
    whole = of_name("retnet")
    decays = next(node.op.values for _, node in whole.walk() if isinstance(node.op, FixedDecay))
    assert ops_of(rank_graph(whole, Parallel(tp=2), 1), FixedDecay)[0].values == decays[4:]


def test_parts_of_a_sum_meet_before_ranks_exchange_them():
    parallel = rank_graph(of_name("gpt-neox-20b"), Parallel(tp=2), 0)
    assert parallel.exchanges()["sum_parts"] == 44 + 1
    experts = rank_graph(of_name("deepseek-v3"), Parallel(tp=2), 0)
    assert experts.exchanges()["sum_parts"] == 2 * 61 + 1


def test_a_value_that_several_products_read_enters_once():
    rank = rank_graph(of_name("llama-3-8b"), Parallel(tp=2), 0)
    assert rank.exchanges()["enter_pieces"] == 2 * 32 + 1


def test_a_norm_over_all_heads_is_run_whole_on_gathered_heads():
    rank = rank_graph(of_name("olmo-2-7b"), Parallel(tp=2), 0)
    assert rank.exchanges()["gather_pieces"] == rank.exchanges()["take_piece"] == 2 * 32
    assert rank.notes == [
        f"{norm} of attn is run whole by every rank of tp: what is cut is gathered for it"
        for norm in ("q_norm", "k_norm")
    ]
    uses = {use.kind for each in rank.uses.values() for use in each.values()}
    assert "gathered" in uses


def test_a_bias_behind_a_sum_is_added_once_and_a_norm_amid_heads_is_shared():
    rank = rank_graph(of_name("tiny-gpt-oss"), Parallel(tp=2), 0)
    uses = {
        f"{scope}.{node.params[role].name}": use.kind
        for scope, node in walk_scopes(rank.graph.root, "")
        for role, use in rank.uses.get(node, {}).items()
    }
    assert uses["layers.0.mixer.o_proj.bias"] == "once"
    assert uses["layers.0.mixer.o_proj.weight"] == uses["layers.0.mixer.attention.sinks"] == "piece"
    assert uses["layers.0.ffn.experts.down_proj_bias"] == "once"
    assert uses["layers.0.ffn.experts.up_proj_bias"] == "piece"
    rank = rank_graph(of_name("qwen3-0.6b"), Parallel(tp=2), 0)
    assert "shared" in {use.kind for node, each in rank.uses.items() if node.name == "q_norm" for use in each.values()}


@pytest.mark.parametrize(
    ("overrides", "tp", "reason"),
    [
        ((), 3, "4 heads of attn"),
        (
            ("mixers.attn.num_heads=8",),
            4,
            "2 kv_heads on tp 4: one that some ranks share, and others not, is not trained",
        ),
        (
            ("tokenizer.vocab_size=3", "mixers.attn.num_kv_heads=4"),
            4,
            "3 rows of the vocabulary can't be shared out to 4",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_with_its_reason(overrides, tp, reason):
    with pytest.raises(SpecError) as error:
        rank_graph(of_name("tiny-llama", *overrides), Parallel(tp=tp), 0)
    assert reason in str(error.value)


def test_experts_that_ep_shares_out_stay_whole():
    rank = rank_graph(of_name("tiny-deepseek-v3"), Parallel(tp=2, ep=2, dp=2), 0)
    assert not [node for node in rank.uses if node.op.op_name == "experts"]
