"""``archc report``."""

from __future__ import annotations

import json
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from archc.reporting.report import DEFAULT_DEVICE


def test_the_command_writes_the_page_and_says_so(invoke, tmp_path: Path):
    file = tmp_path / "report.html"
    result = invoke("report", "tiny-llama", "tiny-t5", "-o", file, "--max-model-len", "2k")
    assert result.exit_code == 0
    assert result.stdout == f"wrote {file}\n"
    assert '"length":"2048"' in file.read_text("utf-8")
    told = json.loads(invoke("report", "tiny-llama", "-o", file, "--json").stdout)
    assert told == {"file": str(file), "bytes": file.stat().st_size}


def test_changes_of_a_spec_are_in_the_page(invoke, tmp_path: Path):
    file = tmp_path / "report.html"
    assert invoke("report", "tiny-llama", "-o", file, "--set", "name=my model", "--gpu", "none").exit_code == 0
    html = file.read_text("utf-8")
    assert "<h1>my model</h1>" in html
    assert "Spec: tiny-llama, shipped with archc, with name=my model" in html
    assert '"commands":["tiny-llama --set \'name=my model\'"]' in html
    assert '"gpu":null' in html
    assert DEFAULT_DEVICE == "h200"


def test_problems_end_in_two_with_a_line_each(invoke, tmp_path: Path):
    result = invoke("report", "tiny-llama", "-o", tmp_path / "report.pdf", "--tp", "3", "--gpu", "h10")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert lines[0] == "archc: 3 problems"
    assert len(lines) == 4
    assert not list(tmp_path.iterdir())


def test_from_start_to_end_it_takes_less_than_two_seconds(shell, tmp_path: Path):
    file = tmp_path / "report.html"
    before = getrusage(RUSAGE_CHILDREN)
    assert shell("report", "kimi-linear-48b-a3b", "llama-3-8b", "gpt-oss-20b", "-o", file).returncode == 0
    after = getrusage(RUSAGE_CHILDREN)
    # The process's own time: other tests that run at once must not fail it.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0
    assert file.stat().st_size < 500_000
