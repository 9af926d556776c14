"""``archc.train`` over 2 and 4 ranks gives the losses and gradient norms of one process, however the model is cut."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.training.sample_text import sample_text  # noqa: E402
from tests.training.ranks import run_ranks  # noqa: E402
from tests.training.worlds import PLANS, STATED  # noqa: E402

pytestmark = pytest.mark.torch

WORKER = Path(__file__).with_name("worlds_worker.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(sample_text(characters=6000), "utf-8")
    return path


@pytest.fixture(scope="module")
def alone(data):
    """Losses, norms and the held-out loss of one process."""
    found = {}
    for spec in dict.fromkeys(spec for plans in PLANS.values() for spec in plans):
        result = archc.train(spec, data=data, **STATED)
        found[spec] = [[record.loss, record.grad_norm] for record in result.records], result.eval_loss
    return found


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize("world", list(PLANS))
def test_ranks_give_the_numbers_of_one_process(world, data, alone):
    said = run_ranks(WORKER, world, data, timeout=600)
    assert all(each == said[0] for each in said[1:]), "ranks differ in what they report"
    lines = [json.loads(line) for line in said[0].splitlines()]
    assert [(spec, plan) for spec, plan, *_ in lines] == [
        (spec, plan) for spec in PLANS[world] for plan in PLANS[world][spec]
    ]
    for spec, plan, numbers, eval_loss in lines:
        expected, expected_eval = alone[spec]
        for step, (found, wanted) in enumerate(zip(numbers, expected, strict=True), 1):
            assert found == pytest.approx(wanted, rel=5e-6), (spec, plan, step)
        assert eval_loss == pytest.approx(expected_eval, rel=5e-6), (spec, plan)
