"""Runs whose processes are killed: what is left, what is said, and how they go on."""

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from archc.cli.main import archc
from archc.training.checkpoint_files import Checkpoint, latest
from archc.training.checkpoints import Checkpoints
from tests.training.learner import unequal

HERE = Path(__file__).parent
KILLS = 10
STEPS, KILLED_IN, EVERY = 9, 8, 3
TEXT = "a tiny text about nothing in particular, told again and again. " * 60


def tensors_of(step):
    """1 MiB whose every number says its step."""
    return {f"model.{number}": torch.full((1 << 15,), float(step)) for number in range(8)}


def save_for_ever(folder, word):
    """Saves in the background, one after the other, while the tensors change."""
    torch.set_num_threads(1)
    checkpoints = Checkpoints(folder, keep=2)
    last = checkpoints.latest()
    step = 0 if last is None else Checkpoint.open(last).step
    tensors, told = tensors_of(step), step + 5
    while True:
        step += 1
        for tensor in tensors.values():
            tensor.add_(1.0)
        checkpoints.save(step, tensors, {"step": step})
        if step == told:
            word.send(step)


def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_checkpoint(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.test_kills"])
    moments, before, leftovers = random.Random(8), 0, 0
    for _ in range(KILLS):
        ours, theirs = context.Pipe()
        process = context.Process(target=save_for_ever, args=(tmp_path, theirs))
        process.start()
        theirs.close()
        started = ours.recv()
        assert started == before + 5
        # Not a wait for something: the moment is what is tried.
        time.sleep(moments.uniform(0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        leftovers += any(name.startswith(".") for name in os.listdir(tmp_path))
        found = Checkpoint.open(latest(tmp_path))
        assert found.problems() == []
        assert found.step >= started - 1
        before = found.step
        blanks = {name: torch.zeros_like(tensor) for name, tensor in tensors_of(0).items()}
        assert Checkpoints(tmp_path).load(None, blanks) == {"step": before}
        assert unequal(blanks, tensors_of(before)) == []
        assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    # Some kills did hit a save.
    assert leftovers > KILLS // 3


def run_of(folder, *more, ranks, killed=None):
    """archc train; with ``killed`` the last rank is killed in that step's forward pass. That, and ranks, are other processes."""
    worker = [str(HERE / "killed_worker.py"), str(killed or 0)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    arguments = ["train", "tiny-llama", "--set", "tokenizer={kind: bytes, bos_token_id: 257, eos_token_id: 256}"]
    arguments += ["--data", str(folder.parent / "text.txt"), "-o", str(folder), "--steps", str(STEPS)]
    arguments += ["--seq-len", "16", "--batch-size", "4", "--checkpoint-every", str(EVERY), "--log-every", "1"]
    if ranks == 1 and killed is None:
        return CliRunner().invoke(archc, [*arguments, *more])
    found = subprocess.run(
        [*(launch if ranks > 1 else [sys.executable]), *worker, *arguments, *more],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )
    return SimpleNamespace(exit_code=found.returncode, stderr=found.stderr)


def losses_of(folder):
    """Step -> loss; of a step that was made again, the last."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_whose_rank_was_killed_goes_on_to_the_same_losses(place, ranks):
    whole = run_of(place / "whole", ranks=ranks)
    assert whole.exit_code == 0, whole.stderr
    killed = run_of(place / "run", ranks=ranks, killed=KILLED_IN)
    assert killed.exit_code != 0
    last = latest(place / "run" / "checkpoints")
    assert last is not None
    assert last.name in ("step-00000003", "step-00000006")
    if ranks > 1:
        said = re.findall(r"^.*archc: (rank \d.*)$", killed.stderr, re.MULTILINE)
        assert said == [
            f"rank 1 of 2 was lost in step {KILLED_IN}: it was killed, or ended without a word; {last} is the last checkpoint, "
            f"and --resume goes on from it"
        ]
    assert set(losses_of(place / "run")) == set(range(1, KILLED_IN))
    resumed = run_of(place / "run", "--resume", ranks=ranks)
    assert resumed.exit_code == 0, resumed.stderr
    assert losses_of(place / "run") == losses_of(place / "whole")
    assert set(losses_of(place / "run")) == set(range(1, STEPS + 1))
    weights = [(place / name / "model" / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "kill",
            r"rank 1 of 2 was lost in step 4: it was killed, or ended without a word; there was no checkpoint yet",
        ),
        ("raise", r"rank 1 of 2 was lost in step 4: CUDA out of memory; there was no checkpoint yet"),
        ("hang", r"another rank of 2 did not answer in step 4: .*[Tt]imed out.*; there was no checkpoint yet"),
    ],
)
def test_a_rank_that_is_gone_is_told_by_the_others_in_bounded_time(tmp_path, how, said):
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                str(HERE / "lost_rank_worker.py"),
                str(rank),
                "2",
                str(tmp_path / "meeting"),
                str(tmp_path),
                how,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    try:
        _, errors = ranks[0].communicate(timeout=120)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 2, errors
    assert re.fullmatch(said, errors.splitlines()[-1]), errors
