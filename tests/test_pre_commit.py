"""The hook that other repositories name in ``.pre-commit-config.yaml``: its entry runs on the files that pre-commit gives it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


def run(*files: Path) -> subprocess.CompletedProcess[str]:
    """What pre-commit does: the entry with file names behind it, in an environment with the package installed."""
    first, *words = shlex.split(HOOK["entry"])
    command = [str(Path(sysconfig.get_path("scripts")) / first), *words, *HOOK.get("args", []), *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_hook_says_what_pre_commit_needs_to_know():
    assert {"id", "name", "entry", "language", "types", "files"} <= HOOK.keys()
    assert HOOK["language"] == "python"


def test_the_hook_takes_specs_and_leaves_other_yaml_alone():
    pattern = re.compile(HOOK["files"])
    specs = [path.relative_to(ROOT).as_posix() for path in (ROOT / "specs").rglob("*.yaml")]
    assert specs
    assert all(pattern.search(path) for path in specs)
    assert pattern.search("models/specs/mine.yml")
    for other in (".pre-commit-config.yaml", "tests/specs.yaml", "specs/notes.md", ".github/workflows/ci.yaml"):
        assert not pattern.search(other)


def test_its_entry_passes_good_specs():
    files = sorted((ROOT / "specs" / "tiny").glob("*.yaml"))
    done = run(*files)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{file}: ok" for file in files]


@pytest.mark.parametrize(
    "text", ["spec_version: 1\nname: half\n", "a: [", ""], ids=["half a spec", "no YAML", "nothing"]
)
def test_its_entry_fails_a_bad_one_with_its_place(tmp_path: Path, text: str):
    bad = tmp_path / "bad.yaml"
    bad.write_text(text)
    done = run(ROOT / "specs" / "tiny" / "tiny-llama.yaml", bad)
    assert done.returncode == 2
    assert str(bad) in done.stderr
    assert "Traceback" not in done.stderr
