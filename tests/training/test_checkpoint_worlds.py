"""A checkpoint of one process on four ranks, and theirs on one and on two: the same bits, and the same losses within rounding."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from archc.spec.resolved import resolved
from archc.training.checkpoints import Checkpoints
from archc.training.run_folder import RunFolder
from archc.training.run_weights import export_weights
from tests.training.checkpoint_worker import FOUR, ONE, SPECS, STEPS, expected_of, near, save_and_go_on
from tests.training.learner import Learner, unequal, whole
from tests.training.ranks import run_ranks

WORKER = Path(__file__).with_name("checkpoint_worker.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints of one process, and those that four ranks made when they had gone on from them."""
    place = tmp_path_factory.mktemp("worlds")
    for spec in SPECS:
        (place / spec).mkdir()
        run = Learner(spec)
        run.learn(STEPS)
        save_and_go_on(run, place, spec, ONE)
    outputs = run_ranks(WORKER, 4, place)
    assert [output.count("went on") for output in outputs] == [5] * 4
    return place


@pytest.mark.parametrize("spec", SPECS)
def test_four_ranks_go_on_from_one_process_and_one_process_from_four_ranks(folder, spec):
    run = Learner(spec, seed=3).load(Checkpoints(folder / spec / FOUR))
    assert run.done == 2 * STEPS
    expected = expected_of(folder, spec, FOUR)
    assert unequal(whole(run.state()), expected["state"]) == []
    assert near(run.learn(STEPS), expected["losses"])


@pytest.mark.parametrize("spec", SPECS)
def test_weights_of_four_ranks_are_exported_by_one_process(folder, spec, tmp_path):
    run = Learner(spec)
    text = resolved(spec).to_yaml()
    made = RunFolder.create(tmp_path / "run", spec_text=text, graph=run.graph, options=run.options.to_json())
    made.checkpoints.symlink_to(folder / spec / FOUR)
    export_weights(made.path, tmp_path / "out")
    state = expected_of(folder, spec, FOUR)["state"]
    weights = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    assert unequal(load_file(tmp_path / "out" / "model.safetensors"), weights) == []


def test_two_ranks_go_on_from_four_and_from_themselves_to_the_last_bit(folder):
    for output in run_ranks(WORKER, 2, folder):
        assert [output.count(what) for what in ("went on", "to the last bit", "refused")] == [4, 2, 1]
