"""What ``archc train`` prints and writes, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from click.testing import Result

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

Invoke = Callable[..., Result]
SPEC = ("tiny-llama", "--set", "tokenizer={kind: bytes, eos_token_id: 256}", "--set", "stack.num_layers=1")
SIZE = ("--seq-len", "16", "--batch-size", "4")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = Random(0)
    words = ("the", "cat", "dog", "sat", "on", "a", "mat")
    documents = (" ".join(draw.choice(words) for _ in range(20)) for _ in range(60))
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("\n\n".join(documents))
    return path


@pytest.fixture
def train(invoke: Invoke, text: Path) -> Invoke:
    """Run ``archc train`` on the small model and text."""

    def run(*arguments: object) -> Result:
        return invoke("train", *SPEC, "--data", text, *SIZE, *arguments)

    return run


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_train_prints_lines_and_leaves_metrics_texts_checkpoints_and_a_model_that_writes(
    train: Invoke, invoke: Invoke, tmp_path: Path
):
    run = tmp_path / "run"
    result = train(
        *("--steps", 6, "-o", run, "--log-every", 2, "--checkpoint-every", 3, "--held-out", 0.2, "--eval-every", 3),
        *("--sample-every", 3, "--sample-prompt", "the cat", "--lr", 1e-2, "--peak-flops", "1T", "--keep", 5),
    )
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("tiny-llama: 217,600 parameters, to step 6, 64 tokens and ")
    steps = [line for line in lines if line.startswith("step ")]
    assert [int(re.match(r"step (\d+)/6", line)[1]) for line in steps] == [1, 2, 3, 4, 6]  # type: ignore[index]
    assert all("MFU" in line and "tokens/s" in line and "grad norm" in line for line in steps)
    assert [line for line in lines if "eval loss" in line] == [steps[2], steps[4], lines[-2]]
    assert sum(line.startswith("sample of step 3, greedy: the cat") for line in lines) == 1
    assert [line for line in lines if line.startswith("checkpoint of step")] == [
        f"checkpoint of step {step}: {run}/checkpoints/step-{step:08d}" for step in (3, 6)
    ]
    found = metrics(run)
    assert [record["step"] for record in found] == [1, 2, 3, 4, 5, 6]
    assert lines[-2].startswith(
        f"trained 6 steps on {found[-1]['tokens']:,} tokens: loss {found[-1]['loss']:.4f}, eval loss "
    )
    assert lines[-1] == f"wrote {run}/model"
    assert all(
        {"loss", "lr", "grad_norm", "tokens_per_s", "mfu", "step_s", "memory_bytes"} <= set(record) for record in found
    )
    assert found[-1]["loss"] < found[0]["loss"]
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert [(one["step"], one["kind"]) for one in samples] == [(3, "greedy"), (3, "drawn"), (6, "greedy"), (6, "drawn")]
    written = invoke(
        "generate", run / "model", "--prompt", "the cat", "--max-new-tokens", 9, "--dtype", "fp32", "--json"
    )
    assert written.exit_code == 0
    assert json.loads(written.stdout)["rows"][0]["ids"] == samples[2]["ids"][:9]


def test_train_json_is_a_summary_and_nothing_else(train: Invoke, tmp_path: Path):
    run = tmp_path / "run"
    result = train("--steps", 2, "-o", run, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    data = json.loads(result.stdout)
    assert (data["ending"], data["step"], data["model"]) == ("finished", 2, str(run / "model"))
    assert data["loss"] == metrics(run)[-1]["loss"]


def test_a_run_of_the_library_leaves_the_same_files_as_one_of_the_command(train: Invoke, text: Path, tmp_path: Path):
    import archc

    train("--steps", 2, "-o", tmp_path / "command", "--sample-every", 1)
    overrides = [word for word in SPEC[1:] if word != "--set"]
    found = archc.train(
        SPEC[0],
        data=text,
        steps=2,
        overrides=overrides,
        seq_len=16,
        batch_size=4,
        sample_every=1,
        output=tmp_path / "run",
    )
    assert found.folder == tmp_path / "run" / "model"
    names = ("run.json", "spec.yaml", "tokenizer.json", "metrics.jsonl", "samples.jsonl")
    assert all((tmp_path / folder / name).is_file() for folder in ("run", "command") for name in names)
    assert [one["loss"] for one in metrics(tmp_path / "run")] == [record.loss for record in found.records]
    assert (tmp_path / "run" / "samples.jsonl").read_text() == (tmp_path / "command" / "samples.jsonl").read_text()


def test_looking_at_a_run_changes_none_of_its_numbers(train: Invoke, tmp_path: Path):
    pytest.importorskip("tensorboard")
    train("--steps", 4, "-o", tmp_path / "plain")
    looked = train(
        *("--steps", 4, "-o", tmp_path / "looked", "--sample-every", 1, "--eval-every", 1, "--eval-data"),
        *(Path(__file__).parents[2] / "CONTRIBUTING.md", "--log-every", 1, "--tensorboard", "--checkpoint-every", 1),
    )
    assert looked.exit_code == 0
    plain, seen = metrics(tmp_path / "plain"), metrics(tmp_path / "looked")
    assert [one["loss"] for one in plain] == [one["loss"] for one in seen]
    assert [one["grad_norm"] for one in plain] == [one["grad_norm"] for one in seen]
    assert any((tmp_path / "looked" / "tensorboard").iterdir())


def test_a_run_goes_on_as_if_it_had_never_ended_with_options_that_are_not_said_again(train: Invoke, tmp_path: Path):
    options = ("--schedule", "constant", "--warmup-steps", 0, "--lr", 3e-3, "--seed", 5)
    train(*options, "--steps", 6, "-o", tmp_path / "whole")
    train(*options, "--steps", 4, "-o", tmp_path / "run")
    # A killed run leaves steps that no checkpoint has, and half a line.
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": 99.0}\n{"step": 6, "lo')
    result = train("--steps", 6, "-o", tmp_path / "run", "--resume")
    assert (result.exit_code, result.stderr) == (0, "")
    whole, resumed = metrics(tmp_path / "whole"), metrics(tmp_path / "run")
    assert [(one["step"], one["loss"]) for one in resumed] == [(one["step"], one["loss"]) for one in whole]
    again = train("-o", tmp_path / "run", "--resume")
    assert again.exit_code == 0
    assert "no step was left to do" in again.stdout


def test_a_run_begins_from_the_weights_of_a_folder(train: Invoke, invoke: Invoke, tmp_path: Path):
    built = invoke("build", *SPEC, "-o", tmp_path / "model", "--dtype", "fp32", "--seed", 0)
    assert built.exit_code == 0
    train("--steps", 3, "-o", tmp_path / "drawn")
    result = train("--steps", 3, "-o", tmp_path / "read", "--weights", tmp_path / "model")
    assert result.exit_code == 0, result.stderr
    drawn, read = ([one["loss"] for one in metrics(tmp_path / name)] for name in ("drawn", "read"))
    assert read == drawn
    other = invoke("build", *SPEC, "-o", tmp_path / "other", "--dtype", "fp32", "--seed", 1)
    assert other.exit_code == 0
    train("--steps", 1, "-o", tmp_path / "elsewhere", "--weights", tmp_path / "other")
    assert metrics(tmp_path / "elsewhere")[0]["loss"] != drawn[0]


def test_a_folder_that_is_another_run_is_refused_and_stays_as_it_is(
    train: Invoke, invoke: Invoke, text: Path, tmp_path: Path
):
    run = tmp_path / "run"
    train("--steps", 2, "-o", run)
    before = files(run)
    there = train("--steps", 2, "-o", run)
    assert (there.exit_code, there.stdout) == (2, "")
    assert "is a run already; --resume goes on with it" in there.stderr
    others = train("--steps", 1, "-o", run, "--resume", "--lr", 1, "--seed", 3)
    assert others.exit_code == 2
    for part in (
        "lr: None in the run, 1.0 now",
        "seed: 0 in the run, 3 now",
        "steps: 2 in the run, 1 now; they may grow",
    ):
        assert part in others.stderr
    spec = invoke("train", *SPEC, "--set", "stack.num_layers=2", "--data", text, *SIZE, "-o", run, "--resume")
    assert spec.exit_code == 2
    assert "spec: stack.num_layers: 1 in the run, 2 now" in spec.stderr
    assert files(run) == before


def test_what_can_not_be_ends_in_exit_code_2_and_writes_nothing(
    train: Invoke, invoke: Invoke, text: Path, tmp_path: Path
):
    out = tmp_path / "run"
    cases = {
        ("--steps", "2", "--tp", "3"): "can't be cut into 3 (tp)",
        ("--steps", "2", "--dp", "2"): "torchrun --nproc-per-node 2",
        (
            "--steps",
            "2",
            "--batch-size",
            "4",
            "--micro-batch-size",
            "3",
        ): "micro_batch_size, 3, doesn't divide the 4 sequences",
        ("--steps", "2", "--sample-prompt", "x"): "every sample_every steps, which is not stated",
        ("--steps", "2", "--warmup-steps", "3"): "warmup_steps, 3, are more than steps, 2",
        ("--steps", "2", "--gpu", "h300"): "device 'h300' is unknown",
        ("--steps", "2", "--gpu", "h100", "--peak-flops", "1T"): "state one",
        ("--steps", "2", "--seq-len", "1M"): "more than the 2,048 of max_position_embeddings",
        ("--resume",): "is no run",
        (): "--steps says how long",
    }
    for arguments, part in cases.items():
        result = train(*arguments, "-o", out)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert part in result.stderr, (arguments, result.stderr)
        assert "Traceback" not in result.stderr
    assert invoke("train", *SPEC, *SIZE, "--steps", 2, "-o", out).exit_code == 2
    assert invoke("train", *SPEC, "--data", tmp_path / "no", *SIZE, "--steps", 2, "-o", out).exit_code == 2
    (tmp_path / "empty.txt").write_text("")
    empty = invoke("train", *SPEC, "--data", tmp_path / "empty.txt", *SIZE, "--steps", 2, "-o", out)
    assert empty.exit_code == 2
    assert "empty.txt" in empty.stderr
    pictures = invoke("train", "vit-base-patch16-224", "--data", text, "--steps", 2, "-o", out)
    assert pictures.exit_code == 2
    assert {path.name for path in tmp_path.iterdir()} == {"empty.txt"}


def test_numbers_that_are_none_stop_a_run_before_they_reach_its_weights(train: Invoke, tmp_path: Path):
    run = tmp_path / "run"
    result = train("--steps", 5, "-o", run, "--lr", 1e30, "--clip-norm", 0, "--checkpoint-every", 1)
    assert result.exit_code == 1
    last = run / "checkpoints" / "step-00000001"
    assert "of step 2 is nan" in result.stderr
    assert f"{last} is its last checkpoint, and --resume goes on from it" in result.stderr
    assert [path.name for path in (run / "checkpoints").iterdir()] == [last.name]
    assert [one["step"] for one in metrics(run)] == [1]


def test_losses_that_jump_and_stay_stop_a_run(train: Invoke, tmp_path: Path):
    run = tmp_path / "run"
    # The rate grows until nothing is learned any more.
    result = train(
        *("--steps", 400, "-o", run, "--lr", 4, "--warmup-steps", 400, "--clip-norm", 0, "--spike-factor", 1.3),
        *("--checkpoint-every", 8, "--json"),
    )
    assert result.exit_code == 1
    assert re.search(r"the losses of steps \d+ to \d+ are above 1.3 times the usual", result.stderr)
    data = json.loads(result.stdout)
    assert data["ending"] == "stopped"
    assert Path(data["checkpoint"]).is_dir()
    steps = [one["step"] for one in metrics(run)]
    assert steps[-1] == data["step"]


def test_ctrl_c_saves_what_was_learned_and_the_run_goes_on(train: Invoke, text: Path, tmp_path: Path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "archc", "train", *SPEC, "--data", str(text), *SIZE, "--log-every", "1"]
    options = ["--steps", "100000", "--warmup-steps", "0", "--schedule", "constant", "-o", str(run)]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step      3/"):
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    done = metrics(run)[-1]["step"]
    assert f"interrupted after step {done}" in errors
    assert (run / "checkpoints" / f"step-{done:08d}").is_dir()
    assert f"step-{done:08d} is its last checkpoint, and --resume goes on from it" in errors
    assert "Traceback" not in errors


def torchrun(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", "-m", "archc", "train", *SPEC, *map(str, arguments)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300)


def test_ranks_of_torchrun_go_on_with_a_run_as_copies_and_only_the_first_one_speaks(
    train: Invoke, text: Path, tmp_path: Path
):
    run, options = tmp_path / "run", ("--schedule", "constant", "--warmup-steps", 0, "--lr", 1e-3)
    train(*options, "--steps", 5, "-o", tmp_path / "alone")
    train(*options, "--steps", 2, "-o", run)
    done = torchrun(2, "--data", text, "--steps", 5, "-o", run, "--resume", "--log-every", 1)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "2 ranks, from step 2 to step 5" in lines[0]
    assert [line[:8] for line in lines if line.startswith("step ")] == ["step 3/5", "step 4/5", "step 5/5"]
    assert lines.count(f"wrote {run}/model") == 1
    alone, together = ([one["loss"] for one in metrics(tmp_path / name)] for name in ("alone", "run"))
    assert together == pytest.approx(alone, rel=1e-5)
    wrong = torchrun(2, "--data", text, *SIZE, "--steps", 3, "-o", run)
    assert wrong.returncode != 0
    assert wrong.stderr.count("is a run already; --resume goes on with it") == 1


def test_a_run_that_goes_on_holds_out_what_it_held_out(train: Invoke, tmp_path: Path):
    train("--steps", 2, "--held-out", 0.1, "-o", tmp_path / "run")
    result = train("--steps", 3, "--resume", "-o", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "eval_loss" in metrics(tmp_path / "run")[-1]


def test_another_rank_than_the_first_says_what_is_wrong_when_nobody_ends_it(
    train: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("archc.cli.train._WAIT_S", 0.01)
    result = train("--steps", 2, "--batch-size", 7, "--dp", 2, "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "batch_size, 7, can't be shared by 2 copies (dp)" in result.stderr
