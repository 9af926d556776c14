"""Charts of training runs: the numbers of metrics.jsonl, several runs in one picture, and what is no run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import archc
from archc.cli.main import archc as command
from archc.errors import ArchcError
from archc.plotting.runs import RUN_CHARTS, run_charts

Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Invoke:
    from click.testing import CliRunner

    return lambda *arguments: CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)


def run_in(folder: Path, losses: list[float | None], held_out: dict[int, float] | None = None) -> Path:
    folder.mkdir(parents=True)
    lines = [
        {
            "step": step,
            "loss": loss,
            "lr": 1e-3 / step,
            "grad_norm": 1.0,
            "tokens_per_s": 1e4,
            **({"eval_loss": held_out[step]} if held_out and step in held_out else {}),
        }
        for step, loss in enumerate(losses, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_charts_have_the_numbers_of_the_runs_each_under_its_own_name(tmp_path: Path):
    first = run_in(tmp_path / "a" / "run", [3.0, 2.0, 1.5], {3: 1.75})
    second = run_in(tmp_path / "b" / "run", [3.5, None, 2.5])
    title, charts = run_charts([first, second])
    assert title == "a/run, b/run"
    assert [chart.what for chart in charts] == list(RUN_CHARTS)
    assert [line.to_json() for line in charts[0].lines] == [
        {"run": "a/run", "held_out": False, "steps": [1, 2, 3], "values": [3.0, 2.0, 1.5]},
        # A loss that was none is a gap.
        {"run": "b/run", "held_out": False, "steps": [1, 3], "values": [3.5, 2.5]},
        {"run": "a/run", "held_out": True, "steps": [3], "values": [1.75]},
    ]
    assert charts[1].lines[0].values == (1e-3, 5e-4, 1e-3 / 3)
    (same,) = run_charts([first, first], ["lr"])[1]
    assert [line.run for line in same.lines] == ["run", "run (2)"]


def test_plot_draws_runs_over_each_other_and_the_same_every_time(invoke: Invoke, tmp_path: Path):
    pytest.importorskip("matplotlib")
    first = run_in(tmp_path / "long", [3.0 + 0.1 * (step % 3) for step in range(300)], {100: 3.0, 300: 2.9})
    second = run_in(tmp_path / "short", [4.0])
    out = tmp_path / "out.svg"
    result = invoke("plot", first, second, "-o", out)
    assert (result.exit_code, result.stdout) == (0, f"wrote {out}\n")
    picture = out.read_text()
    for word in (
        ">loss<",
        ">learning rate<",
        ">norm of all gradients<",
        ">tokens a second<",
        ">long, held out<",
        ">short<",
    ):
        assert word in picture, word
    assert archc.plot([first, second]).picture(".svg") == out.read_bytes()
    one = invoke("plot", first, "--what", "loss", "--json")
    assert [chart["what"] for chart in json.loads(one.stdout)["charts"]] == ["loss"]


def test_a_chart_that_no_run_says_anything_of_is_drawn_empty(tmp_path: Path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert b"no run says anything of it" in archc.plot(folder, what="grad_norm").picture(".svg")


def test_what_is_no_run_or_no_chart_of_one_is_refused(invoke: Invoke, tmp_path: Path):
    run = run_in(tmp_path / "run", [2.0])
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = {
        ("gpt2", run): "gpt2: no training run, and the others are",
        (run, empty): "empty: no training run, and the others are",
        (run, "--what", "los"): "did you mean loss",
        (run, "--what", "cache"): "there is no chart 'cache' of a run",
        (run, "--set", "stack.num_layers=2"): "take no lengths, overrides or options of costs",
        (run, "--batch-size", 4): "take no lengths, overrides or options of costs",
    }
    for arguments, part in cases.items():
        result = invoke("plot", *arguments, "-o", tmp_path / "out.png")
        assert result.exit_code == 2
        assert part in result.stderr, result.stderr
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ArchcError, match="has no steps yet"):
        archc.plot(run)
    assert not (tmp_path / "out.png").exists()
