"""archc train on a disk that fills up: the reason, what is whole, and the run goes on when there is room."""

import os
import subprocess

import pytest
from click.testing import CliRunner

from archc.cli.main import archc
from archc.training.checkpoint_files import Checkpoint

BYTES = "tokenizer={kind: bytes, bos_token_id: 257, eos_token_id: 256}"


def _mount(place, size, *more):
    options = ",".join([f"size={size}", *more])
    return subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
    )


@pytest.fixture
def disk(tmp_path):
    """A disk of 14 MiB: a checkpoint of the model is 9."""
    place = tmp_path / "disk"
    place.mkdir()
    if _mount(place, "14m").returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_fills_up_ends_the_run_and_loses_no_more_than_the_steps_since_the_last_checkpoint(disk, tmp_path):
    (tmp_path / "text.txt").write_text("a tiny text about nothing in particular, told again and again. " * 60)
    run = disk / "run"
    command = [
        "train",
        "tiny-llama",
        "--set",
        BYTES,
        "--data",
        str(tmp_path / "text.txt"),
        "-o",
        str(run),
        "--steps",
        "8",
    ]
    command += ["--seq-len", "16", "--batch-size", "2", "--checkpoint-every", "2"]
    done = CliRunner().invoke(archc, command)
    assert done.exit_code == 2, done.output
    last = run / "checkpoints" / "step-00000002"
    assert f"archc: the checkpoint of step 4 could not be written: the disk of {last.parent} is full" in done.stderr
    assert f"{last} is whole" in done.stderr
    assert os.listdir(last.parent) == [last.name]
    assert Checkpoint.open(last).problems() == []
    assert not (run / "model").exists()

    assert _mount(disk, "64m", "remount").returncode == 0
    done = CliRunner().invoke(archc, [*command, "--resume"])
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir(last.parent)) == ["step-00000006", "step-00000008"]
    assert (run / "model" / "model.safetensors").is_file()
