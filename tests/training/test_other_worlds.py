"""A run of ``archc.train`` that goes on under one plan after another has the losses of one process that never stopped."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.training.sample_text import sample_text  # noqa: E402
from tests.training.ranks import run_ranks  # noqa: E402
from tests.training.worlds import CHAINS, ON_THE_WAY, STEPS_EACH  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
]

WORKER = Path(__file__).with_name("other_worlds_worker.py")


def numbers(found):
    return [[record.loss, record.grad_norm] for record in found.records]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(sample_text(characters=6000), "utf-8")
    return path


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Runs that one process began and two ranks went on with, and what those said of their steps."""
    place = tmp_path_factory.mktemp("runs")
    for spec in CHAINS:
        archc.train(spec, data=data, output=place / spec, **ON_THE_WAY, steps=STEPS_EACH)
    said = run_ranks(WORKER, 2, data, place)
    assert said[0] == said[1], "ranks differ in what they report"
    return place, [json.loads(line) for line in said[0].splitlines() if line.startswith("[")]


@pytest.mark.parametrize("spec", list(CHAINS))
def test_a_run_goes_on_under_other_plans_and_on_one_process_again(spec, runs, data):
    place, lines = runs
    steps = STEPS_EACH * (len(CHAINS[spec]) + 2)
    whole = archc.train(spec, data=data, **ON_THE_WAY, steps=steps)
    own = [line for line in lines if line[0] == spec]
    assert [plan for _, plan, *_ in own] == CHAINS[spec]
    last = archc.train(spec, data=data, output=place / spec, resume=True, **ON_THE_WAY, steps=steps)
    found = [each for _, _, some, _ in own for each in some] + numbers(last)
    expected = numbers(whole)[STEPS_EACH:]
    for step, (one, other) in enumerate(zip(found, expected, strict=True), STEPS_EACH + 1):
        assert one == pytest.approx(other, rel=2e-5), (spec, step)
    assert last.tokens == whole.tokens
    assert last.eval_loss == pytest.approx(whole.eval_loss, rel=2e-5)
    metrics = [json.loads(line) for line in (place / spec / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, steps + 1))
    assert [line["loss"] for line in metrics] == pytest.approx([record.loss for record in whole.records], rel=2e-5)
