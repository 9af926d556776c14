"""Run folders: whose they are, what a resumed run may change, and who is in one."""

import json
import multiprocessing
import os
import signal

import pytest

from archc.expansion import as_graph
from archc.planning.parallel import Parallel
from archc.spec.resolved import resolved
from archc.training.options import TrainOptions
from archc.training.run_folder import RUN, RunFolder, spec_hash
from archc.training.run_locks import RankLock, lost_ranks
from tests.training.learner import message_of

DATA = {"train": "abc", "held_out": 0.0}


def told(spec="tiny-llama", overrides=(), data=DATA, **options):
    merged = resolved(spec, overrides)
    stated = {"steps": 100, "seq_len": 16, "batch_size": 4, **options}
    return {
        "spec_text": merged.to_yaml(),
        "graph": as_graph(merged.spec),
        "options": TrainOptions(**stated).to_json(),
        "data": data,
    }


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", **told())


def test_a_new_run_has_its_spec_and_its_settings(run):
    assert sorted(os.listdir(run.path)) == ["run.json", "spec.yaml"]
    again = RunFolder.open(run.path)
    assert again.settings == run.settings
    assert TrainOptions.from_json(again.options) == TrainOptions(steps=100, seq_len=16, batch_size=4)
    assert spec_hash(as_graph(again.spec)) == again.settings["spec_sha256"]
    assert os.listdir(run.path.parent) == ["run"]


def test_a_run_is_not_begun_where_one_is_or_where_something_else_lies(run, tmp_path):
    assert "is a run already; --resume goes on with it" in message_of(lambda: RunFolder.create(run.path, **told()))
    other = tmp_path / "notes"
    other.mkdir()
    (other / "mine.txt").write_text("kept")
    assert "there already and no run" in message_of(lambda: RunFolder.create(other, **told()))
    assert (other / "mine.txt").read_text() == "kept"
    assert "no run: it has no run.json" in message_of(lambda: RunFolder.open(other))
    assert sorted(os.listdir(tmp_path)) == ["notes", "run"]


def test_a_resumed_run_may_go_on_for_longer_and_elsewhere(run):
    changed = told(
        steps=200,
        parallel=Parallel(dp=2),
        micro_batch_size=1,
        zero=2,
        recompute="full",
        compile=True,
        loss_chunk=64,
        checkpoint_every=5,
        keep=7,
        log_every=1,
    )
    found = run.resume(**changed)
    assert RunFolder.open(run.path).options == run.options
    found.write()
    assert RunFolder.open(run.path).options == changed["options"]
    assert sorted(os.listdir(run.path)) == ["run.json", "spec.yaml"]


def test_every_difference_that_would_spoil_a_run_is_listed(run):
    changed = told(
        overrides=("stack.num_layers=3",),
        data={"train": "xyz", "held_out": 0.0},
        steps=50,
        seq_len=32,
        batch_size=8,
        seed=1,
        lr=1e-3,
        dtype="bfloat16",
        optimizer="muon",
        betas=(0.8, 0.95),
    )
    text = message_of(lambda: run.resume(**changed))
    for line in (
        "spec: stack.num_layers: 4 in the run, 3 now",
        "data: train: abc in the run, xyz now",
        "steps: 100 in the run, 50 now; they may grow",
        "seq_len: 16 in the run, 32 now",
        "batch_size: 4 in the run, 8 now",
        "seed: 0 in the run, 1 now",
        "lr: None in the run, 0.001 now",
        "dtype: float32 in the run, bfloat16 now",
        "optimizer: adamw in the run, muon now",
        "betas.0: 0.9 in the run, 0.8 now",
    ):
        assert f"\n  {line}" in text, text
    assert len(text.splitlines()) == 11
    assert RunFolder.open(run.path).settings == run.settings


def test_an_option_that_is_not_known_to_be_harmless_is_the_runs(run):
    options = {**told()["options"], "of_tomorrow": 1}
    text = message_of(lambda: run.resume(**{**told(), "options": options}))
    assert "of_tomorrow: nothing in the run, 1 now" in text


def test_another_version_of_archc_makes_no_other_run(run):
    settings = json.loads((run.path / RUN).read_text())
    (run.path / RUN).write_text(json.dumps({**settings, "archc": "0.0.1"}))
    assert RunFolder.open(run.path).resume(**told()).settings["archc"] == run.settings["archc"]


def test_damaged_settings_are_named(run):
    (run.path / RUN).write_text("{")
    assert "run.json is no JSON" in message_of(lambda: RunFolder.open(run.path))
    (run.path / RUN).write_text('{"format": 1, "options": 3}')
    assert "run.json is damaged: options, data should be a mapping" in message_of(lambda: RunFolder.open(run.path))


def _hold(path, word, ended=None):
    lock = RankLock(path, 1)
    if ended:
        lock.end(ended)
    word.send(os.getpid())
    word.recv()


def _holder(path, ended=None):
    """A process that holds the lock of rank 1."""
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(path, theirs, ended))
    process.start()
    theirs.close()
    assert ours.recv() == process.pid
    return process, ours


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_two_processes_do_not_train_into_one_folder_and_a_dead_one_keeps_nobody_out(run):
    process, word = _holder(run.path)
    assert f"being trained into by process {process.pid} on" in message_of(lambda: RankLock(run.path, 1))
    assert lost_ranks(run.path, 2, own=0) == {}
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert lost_ranks(run.path, 2, own=0) == {1: "it was killed, or ended without a word"}
    RankLock(run.path, 1).close()
    word.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_rank_that_ended_by_itself_has_left_word(run):
    process, word = _holder(run.path, "CUDA out of memory")
    word.send("end")
    process.join()
    assert lost_ranks(run.path, 2, own=0) == {1: "CUDA out of memory"}
    lock = RankLock(run.path, 1)
    lock.end("rank 0 was lost", because_of_others=True)
    lock.close()
    assert lost_ranks(run.path, 2, own=0) == {}
    word.close()


def test_a_checkpoint_is_written_every_tenth_of_a_run_but_not_more_often_than_every_50_steps():
    intervals = {steps: TrainOptions(steps=steps).checkpoint_interval for steps in (10, 500, 501, 20_000)}
    assert intervals == {10: 50, 500: 50, 501: 50, 20_000: 2_000}
    assert TrainOptions(steps=20_000, checkpoint_every=7).checkpoint_interval == 7
