"""What ``archc estimate --train`` prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from archc.planning.parallel import Parallel
from archc.planning.training.estimate import estimate_training

Invoke = Callable[..., Result]


def rows(text: str) -> dict[str, str]:
    """First words of a table's lines -> the exact bytes behind them."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("  ") and line.endswith(" B"):
            name, *_, number = line.strip().split("  ")
            found[name] = number.strip()
    return found


def test_one_rank_is_printed_line_by_line_and_the_lines_sum_to_its_peak(invoke: Invoke):
    result = invoke(
        "estimate", "llama-3-8b", "--train", "--max-model-len", "8k", "--zero", 3, "--gpus", 8, "--gpu", "h200"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert (
        "llama-3-8b, trained: bfloat16, micro-batch of 1 x 8,192 tokens on 8 NVIDIA H200 SXM 141 GB (dp 8)"
        in result.stdout
    )
    found = rows(result.stdout)
    assert found["master weights"] == f"{8_030_261_248 * 4 // 8:,} B"
    assert found["optimizer states"] == f"{8_030_261_248 * 8 // 8:,} B"
    numbers = {name: int(number.removesuffix(" B").replace(",", "")) for name, number in found.items()}
    assert numbers.pop("peak") == sum(numbers.values())
    assert "fits, " in result.stdout
    assert "largest micro-batch that fits: of" in result.stdout


def test_stages_stand_side_by_side_with_their_micro_batches(invoke: Invoke):
    options = ("--tp", 8, "--pp", 4, "--sequence-parallel", "--micro-batches", 8, "--recompute", "selective")
    result = invoke("estimate", "llama-3-70b", "--train", "--max-model-len", "8k", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["bytes", "stage", "0", "stage", "1", "stage", "2", "stage", "3"] in lines
    assert ["micro-batches", "in", "flight", "4", "3", "2", "1"] in lines
    assert ["layers", "20", "20", "20", "20"] in lines
    assert "schedule: 1f1b: " in result.stdout


def test_the_json_is_the_librarys(invoke: Invoke):
    options = ("--optimizer", "muon", "--zero", 2, "--dp", 4, "--cp", 2, "--loss-chunk", "1k", "--grad-dtype", "f32")
    rest = ("--no-master-weights", "--micro-batch-size", 3, "--micro-batches", 5, "--recompute", "full")
    result = invoke("estimate", "qwen3-8b", "--train", "--max-model-len", "16k", *options, *rest, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = estimate_training(
        "qwen3-8b",
        max_model_len=16384,
        optimizer="muon",
        zero=2,
        parallel=Parallel(dp=4, cp=2),
        loss_chunk=1024,
        grad_dtype="float32",
        master_weights=False,
        micro_batch_size=3,
        micro_batches=5,
        recompute="full",
    )
    assert json.loads(result.stdout)["training"] == found.to_json()


def test_serving_training_and_time_come_together(invoke: Invoke):
    result = invoke(
        "estimate", "llama-3-8b", "--serve", "--train", "--time", "--gpu", "h200", "--max-model-len", "4k", "--json"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert {"serving", "training", "time", "parameters"} <= json.loads(result.stdout).keys()


def test_ops_without_activations_are_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    from archc.ops.attention import Attention

    monkeypatch.setattr(Attention, "saves", lambda self, tape, inputs, weights: None)
    result = invoke("estimate", "tiny-llama", "--train")
    assert result.exit_code == 0
    assert "not counted: ops that can't say what backward keeps of them" in result.stdout
    assert "attention in 4 places" in result.stdout


def test_every_mistake_is_said_at_once(invoke: Invoke):
    options = ("--optimizer", "adam", "--schedule", "1f1", "--tp", 3, "--cp", 2, "--gpu", "h20")
    result = invoke("estimate", "kimi-linear-48b-a3b", "--train", "--max-model-len", "1k", *options)
    assert result.exit_code == 2
    assert "device 'h20' is unknown. Did you mean" in result.stderr
    assert "Did you mean adamw?" in result.stderr
    assert "Did you mean 1f1b?" in result.stderr
    assert "32 heads of kda (layers.0) can't be cut into 3 (tp)" in result.stderr
    assert "carries a recurrent state from token to token" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "options", [("--zero", 3), ("--optimizer", "muon"), ("--sequence-parallel",), ("--loss-chunk", "1k")]
)
def test_an_option_of_training_needs_its_flag(invoke: Invoke, options: tuple[object, ...]):
    result = invoke("estimate", "tiny-llama", *options)
    assert result.exit_code == 2
    assert f"{options[0]} belongs to --train" in result.stderr
