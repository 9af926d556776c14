"""The page about running an exported model: its commands and its code run as they are printed, its keys are the file's."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from archc_exporters.runtime.folder import Contract

ROOT = Path(__file__).parents[2]
PAGE = "runtime.md"
pytestmark = [pytest.mark.onnx, pytest.mark.torch]


def test_what_the_page_prints_runs(
    blocks: Callable[[str, str], list[str]],
    run: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    lines = [line.removeprefix("$ ") for line in blocks(PAGE, "console")[0].splitlines()]
    assert [line.split()[1] for line in lines] == ["export", "run", "bench"]
    for line in lines:
        done = run(line, tmp_path)
        assert done.returncode == 0, done.stderr
    code, _ = blocks(PAGE, "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, PAGE, "exec", dont_inherit=True), {})
    printed = capsys.readouterr().out.splitlines()
    # One line for the batch, one for each of eight tokens.
    assert len(printed) == 9
    assert printed[0].endswith(tuple("0123456789"))
    assert "['length', 'length']" in printed[0]

    told = set(json.loads((tmp_path / "out" / "archc.json").read_text("utf-8")))
    table = (ROOT / "docs" / PAGE).read_text("utf-8").split("## archc.json")[1]
    described = {
        key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)
    }
    assert told - {"name", "vocab_size"} == described
    assert set(Contract.model_fields) <= told


def test_an_encoder_runs_as_the_page_says(
    blocks: Callable[[str, str], list[str]],
    run: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    commands = next(block for block in blocks(PAGE, "console") if "bert" in block)
    export, *others = (line.removeprefix("$ ") for line in commands.splitlines())
    # As on the page, but for the time that a table of 30,522 rows takes.
    smaller = " --set embedding.hidden_size=96 --no-check"
    for line in (export + smaller, *others):
        done = run(line, tmp_path)
        assert done.returncode == 0, done.stderr
    _, code = blocks(PAGE, "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(f"import archc\n{code}", PAGE, "exec", dont_inherit=True), {})
    assert "'hidden_states': (2, 5, 96)" in capsys.readouterr().out
