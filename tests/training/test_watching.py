"""What is written, said, counted and stopped of a run."""

import io
import json
import math
import re

import pytest

import archc
from archc.errors import ArchcError
from archc.training.watching.lines import Lines, duration
from archc.training.watching.metrics import METRICS, MetricsFile, drop_after, read_metrics
from archc.training.watching.samples import SAMPLES, SamplesFile
from archc.training.watching.speed import Speed, device_peak_flops_per_s, step_flops
from archc.training.watching.stops import LEAST_STEPS, PATIENCE_STEPS, WINDOW_STEPS, StopRule
from archc.training.watching.watcher import RunInfo, Sample, Watchers


def run_of(folder, **changes):
    told = {
        "name": "toy",
        "folder": folder,
        "steps": 4,
        "first_step": 0,
        "log_every": 2,
        "ranks": 1,
        "parameters": 1234,
        "tokens_per_step": 1000,
        "flops_per_step": 3 * 10**9,
    }
    return RunInfo(**told | changes)


def record_of(step, **changes):
    return {
        "step": step,
        "loss": 2.5,
        "lr": 1e-3,
        "grad_norm": 0.5,
        "tokens": 1000 * step,
        "step_s": 0.5,
        "tokens_per_s": 2000.0,
        "flops_per_s": 6e9,
        "memory_bytes": 1 << 30,
        "time": 1e9,
    } | changes


def written(folder, steps, **changes):
    file = MetricsFile()
    file.on_start(run_of(folder, **changes))
    for step in steps:
        file.on_step(record_of(step))
    file.close()


def test_metrics_are_lines_that_any_reader_of_json_takes(tmp_path):
    file = MetricsFile()
    file.on_start(run_of(tmp_path))
    file.on_step(record_of(1, loss=math.nan, balance=math.inf, mfu=0.5))
    # What was written can be read while the run goes on.
    (line,) = (tmp_path / METRICS).read_text().splitlines()
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (found["loss"], found["balance"], found["mfu"]) == (None, None, 0.5)
    file.close()


def test_a_run_that_goes_on_drops_later_steps_and_half_a_line(tmp_path):
    written(tmp_path, (1, 2, 3, 4))
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 5, "lo')
    assert [one["step"] for one in read_metrics(tmp_path)] == [1, 2, 3, 4]
    written(tmp_path, (3,), first_step=2)
    assert [one["step"] for one in read_metrics(tmp_path)] == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == [METRICS]


def test_what_is_kept_of_metrics_is_kept_to_the_byte(tmp_path):
    written(tmp_path, (1, 2))
    before = (tmp_path / METRICS).read_bytes()
    inode = (tmp_path / METRICS).stat().st_ino
    drop_after(tmp_path / METRICS, 2)
    assert (tmp_path / METRICS).read_bytes() == before
    # Nothing was to be dropped, so nothing was replaced.
    assert (tmp_path / METRICS).stat().st_ino == inode


def test_a_folder_without_metrics_is_no_run_and_a_strange_line_has_its_number(tmp_path):
    with pytest.raises(ArchcError, match=r"is no run: it has no metrics\.jsonl"):
        read_metrics(tmp_path)
    (tmp_path / METRICS).write_text('{"step": 1}\nhello\n{"step": 2}\n')
    with pytest.raises(ArchcError, match=re.escape(f"{METRICS}:2: is no object with a step")):
        read_metrics(tmp_path)
    (tmp_path / METRICS).write_text("")
    with pytest.raises(ArchcError, match="has no steps yet"):
        read_metrics(tmp_path)


def test_samples_of_later_steps_are_dropped_likewise(tmp_path):
    for first_step, steps in ((0, (2, 4)), (3, (5,))):
        file = SamplesFile()
        file.on_start(run_of(tmp_path, first_step=first_step))
        for step in steps:
            file.on_sample(Sample(step=step, kind="greedy", prompt="a", text="猫\n", ids=(1, 2)))
        file.close()
    found = [json.loads(line) for line in (tmp_path / SAMPLES).read_text("utf-8").splitlines()]
    assert [one["step"] for one in found] == [2, 5]
    assert found[0] == {"step": 2, "kind": "greedy", "prompt": "a", "text": "猫\n", "ids": [1, 2]}


def test_lines_come_every_so_many_steps_and_say_pace_memory_and_what_is_left(tmp_path):
    said = []
    watchers = Watchers([Lines(said.append)])
    watchers.on_start(run_of(tmp_path))
    for step in (1, 2, 3, 4):
        watchers.on_step(record_of(step))
    watchers.on_stop("")
    assert said == [
        "toy: 1,234 parameters, to step 4, 1,000 tokens and 3.00 GFLOP a step",
        "step 1/4  loss 2.5000  lr 1.00e-03  grad norm 0.5000  2.00 k tokens/s  6.00 GFLOP/s  1.000 GiB  0:02 left",
        "step 2/4  loss 2.5000  lr 1.00e-03  grad norm 0.5000  2.00 k tokens/s  6.00 GFLOP/s  1.000 GiB  0:01 left",
        "step 4/4  loss 2.5000  lr 1.00e-03  grad norm 0.5000  2.00 k tokens/s  6.00 GFLOP/s  1.000 GiB",
    ]


def test_a_line_has_mfu_where_the_peak_is_known_and_whatever_else_a_step_says(tmp_path):
    said = []
    lines = Lines(said.append)
    lines.on_start(run_of(tmp_path, peak_flops_per_s=12e9, first_step=2, ranks=8))
    lines.on_step(record_of(3, balance_loss=1.25, eval_loss=3.0))
    lines.on_checkpoint(3, tmp_path)
    lines.on_stop("the loss of step 4 is nan")
    assert said[0].startswith("toy: 1,234 parameters, 8 ranks, from step 2 to step 4")
    assert "eval loss 3.0000  balance loss 1.2500  2.00 k tokens/s  MFU 50.0%" in said[1]
    assert said[2:] == [f"checkpoint of step 3: {tmp_path}", "stopped: the loss of step 4 is nan"]


def test_what_a_model_wrote_can_not_command_a_terminal(tmp_path):
    said = []
    lines = Lines(said.append)
    lines.on_sample(Sample(step=1, kind="drawn", prompt="a", text="b\nc\x1b[2J\x00d", ids=()))
    assert said == ["sample of step 1, drawn: ab⏎c�[2J�d"]


def test_a_bar_shows_steps_and_leaves_texts_as_they_are(tmp_path):
    from rich.console import Console

    from archc.training.watching.terminal import TerminalBar

    out = io.StringIO()
    bar = TerminalBar(Console(file=out, force_terminal=True, width=150))
    bar.preparing("tokens", 1, 2)
    bar.on_start(run_of(tmp_path))
    for step in (1, 2, 3, 4):
        bar.on_step(record_of(step))
    bar.on_sample(Sample(step=4, kind="greedy", prompt="", text="[red]x[/]", ids=()))
    bar.on_stop("")
    bar.close()
    shown = out.getvalue()
    assert "4/4" in shown
    assert "loss 2.5000" in shown
    assert "6.00 GFLOP/s" in shown
    assert "sample of step 4, greedy: [red]x[/]" in shown


def test_durations_are_read_at_a_glance():
    assert [duration(seconds) for seconds in (0.4, 75, 3723, 200_000)] == ["0:00", "1:15", "1:02:03", "2 d 7 h"]


def test_tensorboard_has_every_number_and_every_text(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from archc.training.watching.board import FOLDER, TensorBoard

    board = TensorBoard()
    board.on_start(run_of(tmp_path))
    for step in (1, 2):
        board.on_step(record_of(step, loss=3.0 / step, eval_loss=None))
    board.on_sample(Sample(step=2, kind="greedy", prompt="a", text="b", ids=(1,)))
    board.close()
    found = EventAccumulator(str(tmp_path / FOLDER)).Reload()
    assert [(one.step, one.value) for one in found.Scalars("loss")] == [(1, 3.0), (2, 1.5)]
    tags = set(found.Tags()["scalars"])
    assert {"lr", "grad_norm", "tokens_per_s", "memory_bytes"} <= tags
    assert tags.isdisjoint({"step", "time", "eval_loss"})
    assert "greedy/text_summary" in found.Tags()["tensors"]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-kimi-linear", "tiny-deepseek-v3", "gpt2"])
def test_flops_of_a_step_are_three_forward_passes_of_the_estimate(name):
    estimated = archc.estimate(name, batch_size=6, max_model_len=128)
    found = step_flops(archc.expand(archc.load_spec(name)), seq_len=128, batch_size=6)
    assert found == estimated.to_json()["flops"]["train_step"]


def test_mfu_is_the_share_of_the_peak_and_left_out_where_that_is_unknown():
    assert Speed(10**12, 4e12).of(tokens=100, step_s=0.5) == {"tokens_per_s": 200, "flops_per_s": 2e12, "mfu": 0.5}
    assert "mfu" not in Speed(10**12).of(tokens=100, step_s=0.5)
    # torch's names of devices, and the catalogue's figures.
    for name, peak in (
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA L40S", 362.1e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
    ):
        assert device_peak_flops_per_s(name, "bfloat16") == pytest.approx(peak, rel=1e-3), name
    assert device_peak_flops_per_s("NVIDIA H100 80GB HBM3", "float32") == pytest.approx(66.9e12, rel=1e-3)
    assert device_peak_flops_per_s("some card", "bfloat16") is None


def test_a_run_is_stopped_by_numbers_that_are_none():
    rule = StopRule()
    assert rule.reason(1, 2.0, 1.0) == ""
    assert rule.reason(1200, math.nan, 1.0) == "the loss of step 1,200 is nan"
    assert rule.reason(3, 2.0, math.inf) == "the gradient norm of step 3 is inf"
    # However large, a number is one.
    assert rule.reason(4, 1e30, 1e30) == ""


def test_a_run_is_stopped_by_losses_that_jump_and_stay_and_not_by_one():
    rule = StopRule(spike_factor=2.0)
    for step in range(1, LEAST_STEPS + 1):
        assert rule.reason(step, 1.0, 1.0) == ""
    for step in range(50, 50 + PATIENCE_STEPS - 1):
        assert rule.reason(step, 2.1, 1.0) == ""
    assert rule.reason(60, 1.9, 1.0) == ""
    for step in range(70, 70 + PATIENCE_STEPS - 1):
        assert rule.reason(step, 9.0, 1.0) == ""
    last = 70 + PATIENCE_STEPS - 1
    assert rule.reason(last, 9.0, 1.0) == (
        f"the losses of steps 70 to {last} are above 2 times the usual 1 (the last is 9)"
    )


def test_early_losses_are_not_called_unusual_and_a_rule_that_goes_on_knows_the_usual():
    rule = StopRule(spike_factor=1.5)
    for step, loss in enumerate((1.0, 10.0, 1.0, 10.0, 10.0, 10.0, 10.0, 10.0), 1):
        assert rule.reason(step, loss, 1.0) == ""
    rule = StopRule(spike_factor=1.5, usual=[1.0] * LEAST_STEPS)
    found = [rule.reason(step, 5.0, 1.0) for step in range(PATIENCE_STEPS)]
    assert [bool(reason) for reason in found] == [False] * (PATIENCE_STEPS - 1) + [True]
    for _ in range(2 * WINDOW_STEPS):
        rule.reason(1, 1.0, 1.0)
    assert len(rule.usual) == WINDOW_STEPS
