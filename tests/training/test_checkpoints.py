"""Checkpoints of one process: bits, files, what is kept, and what is said of what is damaged."""

import json
import os
import pickle
import subprocess
import zlib

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader

from archc.errors import ArchcError
from archc.training.checkpoint_files import Checkpoint, at_step, steps_in
from archc.training.checkpoints import Checkpoints
from tests.training.learner import Learner, message_of, unequal, whole

MIXED = {
    "model.table": torch.arange(12.0).reshape(3, 4),
    "model.half": torch.linspace(-1, 1, 7).bfloat16(),
    "model.ids": torch.tensor([3, 1, 2]),
    "model.flag": torch.tensor([True, False, True]),
    "model.none": torch.empty(0, 4),
    "optimizer.table.step": torch.tensor(5.0),
    "optimizer.table.codes": torch.arange(5, dtype=torch.uint8),
}


def copies(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def blanks(tensors):
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


@pytest.fixture
def saved(tmp_path):
    """Checkpoints of two steps, of ``MIXED``."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (10, 20):
        checkpoints.save(step, MIXED, {"step": step}, wait=True)
    return checkpoints


@pytest.mark.parametrize(
    ("spec", "optimizer"),
    [("tiny-llama", "adamw"), ("tiny-llama", "muon"), ("tiny-deepseek-v3", "adamw"), ("tiny-kimi-linear", "muon")],
)
def test_a_run_that_was_saved_and_loaded_goes_on_to_the_last_bit(tmp_path, spec, optimizer):
    run, checkpoints = Learner(spec, optimizer=optimizer), Checkpoints(tmp_path)
    run.learn(3)
    run.save(checkpoints)
    expected = run.learn(5)
    other = Learner(spec, optimizer=optimizer, seed=7)
    assert unequal(whole(other.state()), whole(run.state()))
    checkpoints.finish()
    other.load(checkpoints)
    assert other.done == 3
    assert other.learn(5) == expected
    assert unequal(whole(other.state()), whole(run.state())) == []


def test_names_are_those_of_the_graph_and_each_tied_weight_is_there_once():
    run = Learner("tiny-llama")
    params = run.graph.params()
    trained = {name for name, param in params.items() if param.trainable}
    expected = {f"model.{name}" for name in params}
    expected |= {f"optimizer.{name}.{state}" for name in trained for state in ("step", "exp_avg", "exp_avg_sq")}
    assert run.state().keys() == expected


def test_dtypes_shapes_and_scalars_come_back_as_they_were(saved):
    found = blanks(MIXED)
    assert saved.load(None, found) == {"step": 20}
    assert unequal(found, MIXED) == []


def test_tensors_may_change_as_soon_as_save_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    tensors = {f"model.{number}": torch.full((1 << 20,), float(number)) for number in range(8)}
    for step in range(1, 4):
        expected = copies(tensors)
        checkpoints.save(step, tensors, {})
        for tensor in tensors.values():
            tensor.add_(1.0)
        found = blanks(tensors)
        checkpoints.finish()
        checkpoints.load(None, found)
        assert unequal(found, expected) == []


def test_torch_reads_the_files_without_archc(saved):
    found = blanks(MIXED)
    dcp.load(found, storage_reader=HuggingFaceStorageReader(str(saved.latest())), no_dist=True)
    assert unequal(found, MIXED) == []


def test_only_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 12):
        checkpoints.save(step, MIXED, {})
    checkpoints.finish()
    assert sorted(os.listdir(tmp_path)) == ["step-00000003", "step-00000012"]
    assert checkpoints.latest() == tmp_path / "step-00000012"


def test_a_step_that_is_saved_again_replaces_its_checkpoint(saved):
    other = {name: tensor.clone().fill_(1) for name, tensor in MIXED.items()}
    saved.save(20, other, {"step": 20, "again": True}, wait=True)
    found = blanks(MIXED)
    assert saved.load(None, found) == {"step": 20, "again": True}
    assert unequal(found, other) == []
    assert sorted(os.listdir(saved.folder)) == ["step-00000010", "step-00000020"]


def test_what_a_kill_left_is_removed_and_a_checkpoint_that_was_being_replaced_is_whole_again(saved):
    folder = saved.folder
    (folder / ".step-00000030.saving").mkdir()
    (folder / ".step-00000030.saving" / "rank-00000.safetensors").write_bytes(b"half")
    (folder / "step-00000010").rename(folder / ".step-00000010.removed")
    (folder / "step-00000020").rename(folder / ".step-00000020.replaced")
    assert steps_in(folder) == {}
    again = Checkpoints(folder)
    assert os.listdir(folder) == ["step-00000020"]
    found = blanks(MIXED)
    again.load(None, found)
    assert unequal(found, MIXED) == []


def test_a_checkpoint_by_step_is_found_or_those_that_there_are_listed(saved, tmp_path):
    assert at_step(saved.folder, 10).name == "step-00000010"
    assert "no checkpoint of step 15; there are those of 10, 20" in message_of(lambda: at_step(saved.folder, 15))
    assert "no finished checkpoint yet" in message_of(lambda: at_step(tmp_path / "none", None))


def test_a_file_that_is_short_or_changed_or_missing_or_strange_is_named(saved):
    place = saved.latest()
    file = place / "rank-00000.safetensors"
    data = file.read_bytes()
    found = blanks(MIXED)

    def said():
        text = message_of(lambda: saved.load(place, found))
        assert unequal(found, blanks(MIXED)) == []
        return text

    file.write_bytes(data[:-1])
    assert f"rank-00000.safetensors has {len(data) - 1:,} bytes, {len(data):,} were written" in said()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "rank-00000.safetensors was changed since it was written" in said()
    file.rename(place / "elsewhere.safetensors")
    text = said()
    assert "rank-00000.safetensors is missing" in text
    assert "elsewhere.safetensors is no file of this checkpoint" in text
    (place / "manifest.json").write_text("{}")
    assert "manifest.json: format should be 1" in said()
    assert saved.load(saved.folder / "step-00000010", found) == {"step": 10}


def test_every_tensor_that_does_not_fit_is_listed_and_nothing_is_filled(saved):
    wanted = {
        "model.table": torch.zeros(3, 5),
        "model.half": torch.zeros(7),
        "model.new": torch.zeros(2),
        "model.ids": torch.zeros(3, dtype=torch.int64),
    }
    text = message_of(lambda: saved.load(None, wanted))
    assert "model.table is [3, 4], the run's is [3, 5]" in text
    assert "model.half is BF16, the run's is F32" in text
    assert "model.new is not in it" in text
    assert "optimizer.table.step is in it, and nothing that this run holds" in text
    assert not wanted["model.ids"].any()


class Bomb:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_a_pickle_in_a_checkpoint_is_never_opened(saved, tmp_path):
    place, trap = saved.latest(), tmp_path / "went-off"
    (place / ".metadata").write_bytes(pickle.dumps(Bomb(trap)))
    (place / "extra.distcp").write_bytes(pickle.dumps(Bomb(trap)))
    saved.load(place, blanks(MIXED))
    assert not trap.exists()
    (place / "rank-00000.safetensors").write_bytes(pickle.dumps(Bomb(trap)))
    data = json.loads((place / "manifest.json").read_text())
    bomb = (place / "rank-00000.safetensors").read_bytes()
    data["files"]["rank-00000.safetensors"] = {"bytes": len(bomb), "crc32": zlib.crc32(bomb)}
    (place / "manifest.json").write_text(json.dumps(data))
    assert "can't be read" in message_of(lambda: saved.load(place, blanks(MIXED)))
    assert not trap.exists()


def test_a_manifest_that_names_files_elsewhere_is_refused(saved):
    file = saved.latest() / "manifest.json"
    data = json.loads(file.read_text())
    data["files"]["../../secret.safetensors"] = {"bytes": 1, "crc32": 1}
    file.write_text(json.dumps(data))
    assert "names files that no checkpoint has: ../../secret.safetensors" in message_of(
        lambda: Checkpoint.open(file.parent)
    )


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_ends_a_save_with_its_reason_and_what_was_there_is_whole(small_disk):
    checkpoints = Checkpoints(small_disk)
    small, large = {"model.a": torch.ones(1000)}, {"model.a": torch.ones(1 << 20)}
    checkpoints.save(1, small, {"step": 1}, wait=True)
    checkpoints.save(2, large, {"step": 2})
    text = message_of(checkpoints.finish)
    assert f"the checkpoint of step 2 could not be written: the disk of {small_disk} is full" in text
    assert f"{small_disk / 'step-00000001'} is whole" in text
    assert os.listdir(small_disk) == ["step-00000001"]
    with pytest.raises(ArchcError, match="step 3 could not be written"):
        checkpoints.save(3, large, {"step": 3}, wait=True)
    # And there is room again for what fits.
    checkpoints.save(4, small, {"step": 4}, wait=True)
    assert checkpoints.load(None, blanks(small)) == {"step": 4}


def test_a_save_that_failed_is_said_by_the_next_one(small_disk):
    checkpoints = Checkpoints(small_disk)
    checkpoints.save(1, {"model.a": torch.ones(1 << 20)}, {})
    with pytest.raises(ArchcError, match=r"step 1 could not be written.*there is no earlier one"):
        checkpoints.save(2, {"model.a": torch.ones(4)}, {})
    assert checkpoints.newly_finished() == []
    checkpoints.save(3, {"model.a": torch.ones(4)}, {})
    checkpoints.finish()
    assert checkpoints.newly_finished() == [3]
    assert checkpoints.newly_finished() == []
