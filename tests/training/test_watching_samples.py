"""Texts that models write while they are trained, on one rank and on several."""

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from archc.expansion import as_graph  # noqa: E402
from archc.graph.graph import LAYER  # noqa: E402
from archc.planning.parallel import Parallel  # noqa: E402
from archc.planning.plan import plan  # noqa: E402
from archc.training.options import TrainOptions  # noqa: E402
from archc.training.parallel.world import open_world  # noqa: E402
from archc.training.prepare import prepare  # noqa: E402
from archc.training.watching.sampling import ModelSampler, refuse_samples  # noqa: E402
from tests.training.ranks import run_ranks  # noqa: E402
from tests.training.sampled import CASES, NEW_TOKENS, PROMPTS, options_of  # noqa: E402

pytestmark = pytest.mark.torch


def sampler_of(name, **options):
    graph, asked, world = as_graph(name), options_of(Parallel()), open_world(Parallel())
    prepared = prepare(graph, asked, world)
    made = ModelSampler(
        graph,
        prepared.module,
        asked,
        world,
        **{"prompts": PROMPTS, "text": None, "new_tokens": NEW_TOKENS} | options,
    )
    return made, prepared


def test_texts_are_those_of_generate_and_leave_random_numbers_and_the_model_as_they_are():
    sampler, prepared = sampler_of("tiny-gpt-oss")
    numbers = torch.get_rng_state()
    before = {name: weight.clone() for name, weight in prepared.module.model.state_dict().items()}
    found = sampler(7)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert prepared.module.model.training
    assert all(torch.equal(weight, before[name]) for name, weight in prepared.module.model.state_dict().items())
    model = archc.build("tiny-gpt-oss", device="cpu", seed=3).eval()
    greedy = archc.generate(model, PROMPTS, max_new_tokens=NEW_TOKENS)
    assert [list(one.ids) for one in found if one.kind == "greedy"] == greedy.ids
    drawn = archc.generate(model, PROMPTS, max_new_tokens=NEW_TOKENS, temperature=0.8, seed=3)
    assert [list(one.ids) for one in found if one.kind == "drawn"] == drawn.ids
    assert {one.step for one in found} == {7}
    assert found[0].prompt == "5 6 7 "


def test_a_decoder_answers_what_its_encoder_read():
    sampler, _ = sampler_of("tiny-t5")
    model = archc.build("tiny-t5", device="cpu", seed=3).eval()
    found = sampler(1)
    assert [list(one.ids) for one in found[:2]] == archc.generate(model, PROMPTS, max_new_tokens=NEW_TOKENS).ids
    assert found[0].prompt == "5 6 7  → "


def test_a_prompt_that_fills_the_model_leaves_as_much_as_there_is_room_for():
    most = as_graph("tiny-llama").max_position_embeddings
    sampler, _ = sampler_of("tiny-llama", prompts=[[5] * (most - 4)])
    assert [len(one.ids) for one in sampler(1)] == [4, 4]


def test_samples_that_can_not_be_are_refused_before_a_run_begins():
    wanted = TrainOptions(steps=1, sample_every=1)
    with pytest.raises(ArchcError, match="is an encoder"):
        refuse_samples(as_graph("bert-base-uncased"), wanted, (), (None, None))
    with pytest.raises(ArchcError, match="has no tokenizer"):
        refuse_samples(as_graph("tiny-llama"), wanted, ("a",), (None, None))
    with pytest.raises(ArchcError, match="which is not stated"):
        refuse_samples(as_graph("tiny-llama"), TrainOptions(steps=1), ("a",), (None, None))
    refuse_samples(as_graph("tiny-llama"), wanted, (), (None, None))


@pytest.fixture(scope="module")
def of_ranks():
    """What the first of four ranks said of each case: texts, sums of whole weights, shapes of what it holds."""
    said = run_ranks(Path(__file__).with_name("sampling_worker.py"), 4)
    lines = [json.loads(line) for line in said[0].splitlines()]
    assert len(lines) == len(CASES)
    return dict(zip(map(str, CASES), lines, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_that_share_a_model_write_what_one_process_writes(of_ranks, case):
    samples, sums, _ = of_ranks[str(case)]
    alone, _ = sampler_of(case[0])
    assert samples == [[one.kind, *one.ids] for one in alone(1)]
    model = archc.build(case[0], device="cpu", seed=3)
    weights = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    assert sums == {key: weights[key].double().sum().item() for key in as_graph(case[0]).params()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rank_holds_what_the_plan_says(of_ranks, case):
    name, parallel = case
    held, graph, found = of_ranks[str(case)][2], as_graph(name), plan(name, parallel, dtype="float32")
    labels = {call.name: call.body.label for call in graph.root.calls() if LAYER.match(call.name)}
    rows = {(row.layer, row.name): row for row in found.weights}
    for key, shape in held.items():
        layer = next((prefix for prefix in labels if key.startswith(f"{prefix}.")), "")
        row = rows[labels.get(layer, ""), key.removeprefix(f"{layer}.") if layer else key]
        assert shape == list(row.rests), key
    # Nothing beside them, and nothing missing: float32 parameters and buffers of the first stage, to the byte.
    first = found.stages[0].weights
    ints = {key for key, param in graph.params().items() if param.dtype.startswith("int")}
    assert not ints
    assert sum(math.prod(shape) * 4 for shape in held.values()) == first.parameters + first.buffers
