"""What ``archc fit`` prints and writes, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from archc.estimation.estimate import estimate
from archc.spec.load import load_spec

Invoke = Callable[..., Result]

SEVEN = (
    "fit",
    "llama-3-8b",
    "--params",
    "7B",
    "--free",
    "hidden_size=multiple_of:512",
    "--free",
    "stack.num_layers=16..48..4",
)


def test_a_fit_prints_what_was_asked_and_found(invoke: Invoke):
    result = invoke(*SEVEN)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    values = {row[0]: row[1] for row in rows if len(row) == 2 and "." in row[0]}
    assert set(values) == {"embedding.hidden_size", "stack.num_layers"}
    total = estimate(load_spec("llama-3-8b", [f"{key}={value}" for key, value in values.items()])).parameters.total
    assert f"7,000,000,000 (7.00 G)  {total:,}" in result.stdout
    assert f"{100 * (total - 7e9) / 7e9:+.2f} %" in result.stdout
    assert "combinations" in result.stdout


def test_the_solution_is_written_as_a_spec_that_validates(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "seven.yaml"
    result = invoke(*SEVEN, "-o", path, "--json")
    assert result.exit_code == 0
    assert result.stderr == f"wrote {path}\n"
    assert invoke("validate", path).exit_code == 0
    data = json.loads(result.stdout)
    spec = load_spec(path)
    assert spec.name == "seven"
    assert estimate(spec).parameters.total == data["goals"][0]["found"] == data["quantities"]["parameters"]


def test_a_file_that_holds_something_else_is_kept(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "seven.yaml"
    path.write_text("mine\n")
    result = invoke(*SEVEN, "-o", path)
    assert (result.exit_code, path.read_text()) == (2, "mine\n")
    assert "--overwrite replaces it" in result.stderr
    assert invoke(*SEVEN, "-o", path, "--overwrite").exit_code == 0
    assert load_spec(path).name == "seven"


def test_lengths_and_bytes_are_written_as_people_write_them(invoke: Invoke):
    result = invoke("fit", "kimi-linear-48b-a3b", "--cache-at", "128k", "2GiB", "--free", "stack.num_layers=7..99..4")
    assert result.exit_code == 0
    assert "cache at 131,072 tokens  at most 2,147,483,648 (2.000 GiB)" in result.stdout


def test_contradictory_goals_say_which(invoke: Invoke):
    options = ("--free", "stack.num_layers=8..64", "--cache-at", "128k", "2GiB")
    result = invoke("fit", "llama-3-8b", *options)
    assert result.exit_code == 2
    assert result.stderr == (
        "archc: cache at 131,072 tokens: the smallest possible is 4.000 GiB (4,294,967,296 B) > 2.000 GiB "
        "(2,147,483,648 B) at stack.num_layers=8\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing is asked for"),
        (("--params", "7Q"), "is no count"),
        (("--cache-at", "128k", "2G"), "is no number of bytes"),
        (("--memory", "h20"), "Did you mean h200-sxm?"),
        (("--params", "7B", "--free", "hidden_siz=3"), "Did you mean hidden_size?"),
        (("--params", "7B", "-o", "out.csv"), "should end in .yaml, .yml"),
    ],
)
def test_options_that_are_none_end_in_2(invoke: Invoke, options: tuple[str, ...], message: str):
    result = invoke("fit", "llama-3-8b", "--free", "stack.num_layers=8..16", *options)
    assert result.exit_code == 2
    assert message in result.stderr
