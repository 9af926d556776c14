import pytest
import torch

from archc.training.options import TrainOptions
from archc.training.schedules import lr_at, set_lr


def options(**asked):
    return TrainOptions(**{"steps": 100, "seq_len": 8, "batch_size": 2, "lr": 0.5, "warmup_steps": 10, **asked})


def torch_lrs(scheduler_of, steps):
    """What one of torch's schedulers gives for the first calls of step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler, found = scheduler_of(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_warm_up_rises_in_equal_parts_as_torchs_linear_one():
    expected = torch_lrs(lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 9), 10)
    for schedule in ("cosine", "wsd", "constant"):
        assert [lr_at(step, options(schedule=schedule)) for step in range(10)] == pytest.approx(expected, rel=1e-12)


def test_cosine_is_torchs_from_the_peak_to_the_floor():
    asked = options(schedule="cosine", min_lr_ratio=0.1)
    expected = torch_lrs(lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 90, 0.05), 91)
    assert [lr_at(step, asked) for step in range(9, 100)] == pytest.approx(expected, rel=1e-9)
    assert lr_at(9, asked) == 0.5
    assert lr_at(54, asked) == pytest.approx(0.275)
    assert lr_at(99, asked) == pytest.approx(0.05)


def test_wsd_keeps_the_peak_and_falls_in_a_line_as_torchs():
    asked = options(schedule="wsd", decay_steps=20, min_lr_ratio=0.25)
    assert {lr_at(step, asked) for step in range(9, 80)} == {0.5}
    expected = torch_lrs(lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.25, 20), 21)
    assert [lr_at(step, asked) for step in range(79, 100)] == pytest.approx(expected, rel=1e-9)
    assert lr_at(99, asked) == 0.125


def test_constant_keeps_the_peak():
    assert {lr_at(step, options(schedule="constant")) for step in range(9, 200)} == {0.5}


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_a_run_without_warm_up_begins_below_or_at_the_peak_and_ends_at_the_floor(schedule):
    asked = options(schedule=schedule, warmup_steps=0, min_lr_ratio=0.0, decay_steps=100)
    lrs = [lr_at(step, asked) for step in range(100)]
    assert lrs == sorted(lrs, reverse=True)
    assert lrs[0] > 0.49
    assert lrs[-1] == (0.5 if schedule == "constant" else 0.0)


def test_steps_beyond_the_last_have_the_last_ones():
    for schedule in ("cosine", "wsd"):
        assert lr_at(500, options(schedule=schedule)) == lr_at(99, options(schedule=schedule))


def test_a_run_that_is_all_warm_up_ends_at_the_peak():
    assert lr_at(99, options(warmup_steps=100)) == 0.5


def test_defaults_are_a_tenth_of_the_steps():
    asked = TrainOptions(steps=1000, seq_len=8, batch_size=2, lr=1.0, schedule="wsd")
    assert lr_at(0, asked) == 0.01
    assert lr_at(99, asked) == lr_at(899, asked) == 1.0
    assert lr_at(900, asked) < 1.0


def test_every_group_gets_the_learning_rate():
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [weights[0]], "lr": 3.0}, {"params": [weights[1]]}], lr=1.0)
    set_lr(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
