"""The page about time: its command prints what it shows, and its tables are what the estimate gives."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from archc.planning.hardware import devices, find_device
from archc.planning.parallel import Parallel
from archc.planning.timing.estimate import estimate_time
from archc.spec.load import load_spec

PAGE = Path(__file__).parents[2] / "docs" / "time.md"
Blocks = Callable[[str, str], list[str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
RANKS = {"one rank": Parallel(), "tp 8": Parallel(tp=8), "dp 8, ep 8": Parallel(dp=8, ep=8)}


def cells(first: str) -> list[list[str]]:
    """The rows of the table whose first column has this name."""
    lines = PAGE.read_text("utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_command_prints_what_the_page_shows(blocks: Blocks, run: Run, tmp_path: Path):
    (line,) = blocks("time.md", "console")
    (shown,) = blocks("time.md", "text")
    done = run(line.removeprefix("$ "), tmp_path)
    assert done.returncode == 0, done.stderr
    for part in shown.split("\n\n"):
        assert part.strip("\n") in done.stdout


def test_the_device_of_the_page_is_one(blocks: Blocks, tmp_path: Path):
    (text,) = blocks("time.md", "yaml")
    file = tmp_path / "own.yaml"
    file.write_text(text)
    assert list(devices(file)) == ["my-chip"]
    assert find_device("mine", file).peak("float8_e4m3fn") == (10**15, "float8_e4m3fn")


def milliseconds(mixer: str, ranks: Parallel, sequences: int) -> float:
    found = estimate_time(
        load_spec("kimi-linear-48b-a3b", [f"stack.mixer={mixer}"]),
        gpu="h800",
        parallel=ranks,
        batch_size=sequences,
        max_model_len=1 << 20,
        compute_efficiency=1.0,
        memory_efficiency=1.0,
        link_efficiency=1.0,
    )
    return found.steps["decode"].seconds * 1e3


def test_the_table_of_kimi_linear_s_decode_is_what_the_roofline_gives():
    rows = cells("ranks")
    assert len(rows) == 6
    for ranks, sequences, *shown in rows:
        mla, hybrid = (
            milliseconds(mixer, RANKS[ranks], int(sequences)) for mixer in ("mla*27", "(kda*3 mla)* kda*2 mla")
        )
        assert [f"{mla:.2f}", f"{hybrid:.2f}", f"{mla / hybrid:.2f}"] == shown, ranks


def test_what_the_page_says_of_memory_and_prefill_is_so():
    seven = milliseconds("(kda*3 mla)* kda*2 mla", Parallel(tp=8), 7) / 7
    one = milliseconds("mla*27", Parallel(tp=8), 1)
    assert (f"{one:.2f}", f"{seven:.2f}", f"{one / seven:.2f}") == ("9.98", "2.65", "3.76")
    for length, shown in ((1 << 19, "3.41"), (1 << 20, "3.62")):
        times = [
            estimate_time(
                load_spec("kimi-linear-48b-a3b", changes), gpu="h800", max_model_len=length, compute_efficiency=1.0
            )
            .steps["prefill"]
            .seconds
            for changes in (["stack.mixer=mla*27"], [])
        ]
        assert f"{times[0] / times[1]:.2f}" == shown


@pytest.mark.parametrize("option", [row[0] for row in cells("option")])
def test_every_option_of_the_page_is_one_of_the_command(option: str):
    from archc.cli.estimate import command

    known = {name for parameter in command.params for name in parameter.opts}
    for name in option.replace("`", " ").replace(",", " ").split():
        if name.startswith("--"):
            assert name in known


def test_what_the_page_says_of_llama_3_s_training_is_so():
    shown = {0.0: ("38.4", "0.28"), 1.0: ("32.7", "0.33")}
    for overlap, figures in shown.items():
        budget = estimate_time(
            "llama-3.1-405b",
            gpu="h100",
            parallel=Parallel(tp=8, pp=16, dp=128),
            max_model_len=8192,
            micro_batches=16,
            overlap=overlap,
            tokens=15_600_000_000_000,
            flops_convention="6nd",
        ).budget
        assert budget.gpu_hours is not None
        assert (f"{budget.gpu_hours / 1e6:.1f}", f"{budget.model_flops_utilization:.2f}") == figures
