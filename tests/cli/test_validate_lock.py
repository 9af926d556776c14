"""``archc validate --lock``: exit code 1 on a changed graph, and what changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def lockfile(invoke, tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    path.write_text(invoke("show", "tiny-kimi-linear", "--lock").stdout)
    return path


def test_an_unchanged_graph_passes(invoke, lockfile):
    result = invoke("validate", "tiny-kimi-linear", "--lock", lockfile)
    assert result.exit_code == 0
    assert result.stdout == f"tiny-kimi-linear: ok\ntiny-kimi-linear: as locked in {lockfile}\n"


def test_a_changed_graph_fails_with_a_line_a_change(invoke, lockfile, tmp_path):
    child = tmp_path / "child.yaml"
    parent = Path(__file__).parents[2] / "specs" / "tiny" / "tiny-kimi-linear.yaml"
    child.write_text(f"extends: {parent}\nname: child\nmixers: {{kda: {{full_rank_gate: true}}}}\n")
    result = invoke("validate", child, "--lock", lockfile)
    assert result.exit_code == 1
    first, *lines = result.stderr.splitlines()
    assert first == f"archc: {child} is not as locked in {lockfile}: {len(lines)} changes"
    assert lines[0] == "  name is child, was tiny-kimi-linear"
    assert any(line.endswith("mixer.g_proj (linear) is new") for line in lines)
    data = invoke("validate", child, "--lock", lockfile, "--json")
    assert data.exit_code == 1
    found = json.loads(data.stdout)
    assert [f"  {line}" for line in found["lock"]["changes"]] == lines
    assert found["files"] == [{"file": str(child), "valid": True}]


def test_another_version_of_archc_is_a_note(invoke, lockfile):
    lock = json.loads(lockfile.read_text())
    lockfile.write_text(json.dumps({**lock, "archc": "0.0"}))
    result = invoke("validate", "tiny-kimi-linear", "--lock", lockfile)
    assert result.exit_code == 0
    assert "note: archc is" in result.stderr


def test_what_is_no_lockfile_is_a_problem_and_no_traceback(shell, lockfile):
    for text in ("", "{}", '{"format": 1}', "[" * 100_000):
        lockfile.write_text(text)
        done = shell("validate", "tiny-llama", "--lock", lockfile)
        assert done.returncode == 2, text[:10]
        assert done.stderr.startswith(f"archc: {lockfile}: ")
        assert "Traceback" not in done.stderr


def test_a_bad_spec_is_its_own_problem(invoke, bad_spec, lockfile):
    result = invoke("validate", bad_spec, "--lock", lockfile)
    assert result.exit_code == 2
    assert "locked" not in result.output


def test_one_lockfile_belongs_to_one_spec(invoke, lockfile):
    result = invoke("validate", "tiny-llama", "tiny-gpt-oss", "--lock", lockfile)
    assert result.exit_code == 2
    assert "--lock holds the graph of one spec (found 2 files)" in result.stderr
