"""Stages of a pipeline: cut from a model's own forward, they make what the whole makes, and hold what the plan says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from archc import Parallel, loads_spec  # noqa: E402
from archc.errors import SpecError  # noqa: E402
from archc.expansion import as_graph, expand  # noqa: E402
from archc.ir.size import evaluate  # noqa: E402
from archc.planning.sharding import shard  # noqa: E402
from archc.planning.stage_values import shared_params, values_between  # noqa: E402
from archc.planning.stages import split_into_stages  # noqa: E402
from archc.testing.placing import spec_text  # noqa: E402
from archc.torch_backend.build import build  # noqa: E402
from archc.torch_backend.weights import materialise  # noqa: E402
from archc.training.options import TrainOptions  # noqa: E402
from archc.training.parallel.stage import take_stage, weights_here  # noqa: E402
from archc.training.prepare import refuse_what_cannot_be  # noqa: E402
from tests.plugins.kinds import EXAMPLES  # noqa: E402
from tests.plugins.specs import tiny  # noqa: E402
from tests.plugins.test_sharing import shared  # noqa: E402
from tests.torch_backend.examples import enliven, small_spec, tokens  # noqa: E402

pytestmark = pytest.mark.torch

ROWS, SEQ, SOURCE = 2, 12, 9
SIZES = {"batch": ROWS, "seq": SEQ, "past": 0, "capacity": SEQ, "source": SOURCE, "memory": SOURCE}


def given(graph):
    """Something for each of a model's inputs, positions left to the model."""
    found = {}
    for number, (name, value) in enumerate(graph.inputs.items()):
        shape = [evaluate(dim, SIZES) for dim in value.shape]
        if name.endswith("attention_mask"):
            found[name] = torch.ones(shape, dtype=torch.int64)
            found[name][0, -3:] = 0
        elif name == "prefix_length":
            found[name] = torch.tensor([3, 5])
        elif name.endswith("type_ids"):
            found[name] = torch.ones(shape, dtype=torch.int64)
        elif value.dtype != "int64":
            found[name] = torch.randn(shape, generator=torch.Generator().manual_seed(number))
        elif not name.endswith("positions"):
            found[name] = tokens(*shape, 40, number)
    return found


def run_stages(graph, count, inputs):
    """What the last stage gives, each stage run by what the one before gave; on the way, that values are as the graph says."""
    handed = ()
    for index in range(count):
        model = enliven(build(graph, device="cpu", seed=0))
        stage = take_stage(model, graph, index, count)
        handed = model(*handed, **{name: value for name, value in inputs.items() if name in stage.inputs})
        for value, tensor in zip(stage.sent, handed, strict=not stage.is_last):
            assert tensor.shape == tuple(evaluate(dim, SIZES) for dim in value.shape)
            assert tensor.dtype == getattr(torch, value.dtype, torch.float32)
    return handed


def same(graph, count):
    inputs = given(graph)
    whole = enliven(build(graph, device="cpu", seed=0))(**inputs)
    got = run_stages(graph, count, inputs)
    whole = whole if isinstance(whole, tuple) else (whole,)
    return len(got) == len(whole) and all(map(torch.equal, got, whole))


@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if not kind.startswith("tokenizer.")])
def test_two_stages_of_a_model_of_any_kind_give_what_it_gives(kind):
    example = EXAMPLES[kind]
    graph = expand(loads_spec(spec_text(*kind.split("."), example.keys, example.around)))
    if split_into_stages(graph, 2).problems:
        with pytest.raises(SpecError, match="layers"):
            take_stage(build(graph), graph, 0, 2)
    else:
        assert same(graph, 2)


def stacked(block, layers=5, embedding="{hidden_size: 16, tie_word_embeddings: true}"):
    stack = f"{{num_layers: {layers}, block: {block}, mixer: mixer, ffn: ffn}}"
    return expand(loads_spec(tiny(stack=stack, embedding=embedding)))


MODELS = {
    "one stream": stacked("pre_norm"),
    "residual streams": stacked("{kind: hyper_connections, num_streams: 3, sinkhorn_iters: 2, eps: 1e-3}"),
    "outputs of earlier blocks": stacked("{kind: attention_residual, block_size: 2}"),
    "tiny-t5": "tiny-t5",
    "tiny-deepseek-v3": "tiny-deepseek-v3",
    "tiny-kimi-linear": "tiny-kimi-linear",
}


def graph_of(name):
    return as_graph(MODELS[name])


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_more_stages_give_what_the_whole_gives(name, count):
    assert same(graph_of(name), count)


@pytest.mark.parametrize("name", MODELS)
def test_a_stage_holds_the_weights_of_its_layers_and_no_others(name):
    graph, count = graph_of(name), 3
    planned = shard(graph, Parallel(pp=count)).check().stages
    found = []
    for index in range(count):
        model = build(graph)
        stage = take_stage(model, graph, index, count)
        materialise(model, "cpu")
        held = weights_here(model, graph)
        wanted = {full: piece.shape for piece in planned[index].params for full in piece.names}
        assert {full: tuple(tensor.shape) for full, tensor in held.items()} == wanted
        # Each tied weight is one tensor, under the graph's name, and nothing else has elements.
        assert {full for full, _ in model.named_parameters()} <= set(wanted)
        assert stage.second_copies == {full for full in wanted if any(full in earlier for earlier in found)}
        found.append(wanted)
    assert set().union(*found) == set(graph.params())


def test_what_is_made_early_and_read_late_goes_through_the_stages_between():
    graph = as_graph("tiny-t5")
    stages = split_into_stages(graph, 4).stages
    by_name = [[str(value.shape[1]) for value in each] for each in values_between(graph, stages)]
    # The encoder's output, too, behind the decoder's first layer.
    assert by_name == [["source"], ["source"], ["source", "seq"]]
    assert shared_params(graph, stages) == {
        "embed_tokens.weight": (0, 2, 3),
        "encoder.relative_bias_0.weight": (0, 1),
        "decoder.relative_bias_0.weight": (2, 3),
    }


def test_tables_of_positions_are_made_on_each_stage_and_not_sent():
    graph = graph_of("one stream")
    assert [[value.width for value in each] for each in values_between(graph, split_into_stages(graph, 5).stages)] == [
        [16]
    ] * 4


def test_a_stage_can_not_read_keys_that_another_keeps():
    graph = expand(loads_spec(shared()))
    with pytest.raises(SpecError, match=r"layers\.6 reads rows that layers\.1 keeps on another stage \(pp\)"):
        take_stage(build(graph), graph, 0, 2)


def test_a_plan_of_more_stages_than_layers_is_refused():
    with pytest.raises(SpecError, match=r"5 layers can't be cut into 6 stages \(pp\)"):
        refuse_what_cannot_be(
            graph_of("one stream"), TrainOptions(steps=1, seq_len=8, batch_size=8, parallel=Parallel(pp=6))
        )


def test_a_batch_that_micro_batches_do_not_divide_is_refused():
    options = TrainOptions(steps=1, seq_len=8, batch_size=8, micro_batch_size=3, parallel=Parallel(pp=2))
    with pytest.raises(SpecError, match="micro_batch_size, 3, doesn't divide the 8 sequences of a copy"):
        options.check()


def test_fewer_micro_batches_than_stages_are_allowed_and_noted():
    notes = {
        size: TrainOptions(steps=1, seq_len=8, batch_size=8, micro_batch_size=size, parallel=Parallel(pp=4))
        .check()
        .notes()
        for size in (2, 4, None)
    }
    assert notes == {
        2: [],
        4: [
            "2 micro-batches on 4 stages (pp): each waits 60% of the time; state a micro_batch_size of at most 2, or a larger "
            "batch_size"
        ],
        None: [
            "1 micro-batch on 4 stages (pp): each waits 75% of the time; state a micro_batch_size of at most 2, or a larger "
            "batch_size"
        ],
    }


def test_a_stage_is_cut_from_a_small_model_with_a_tied_table_once():
    graph = expand(small_spec(layers=3, tied=True))
    model = build(graph)
    take_stage(model, graph, 2, 3)
    assert model.lm_head.weight is model.embed_tokens.weight
    assert [full for full, _ in model.named_parameters() if "embed" in full or "head" in full] == [
        "embed_tokens.weight"
    ]
