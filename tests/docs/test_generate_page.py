"""The page about generating: its commands and its code run as they are printed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = "generate.md"
pytestmark = pytest.mark.torch


def test_what_the_page_prints_runs(
    blocks: Callable[[str, str], list[str]],
    run: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    build, _, answer, learn = blocks(PAGE, "console")
    (tmp_path / "harbour.yaml").write_text(blocks(PAGE, "yaml")[0], encoding="utf-8")
    (tmp_path / "texts.txt").write_text("the harbour was still\n海港很安静\n" * 9, encoding="utf-8")
    said: dict[str, str] = {}
    for line in (build + learn + answer).splitlines():
        done = run(line.removeprefix("$ "), tmp_path)
        assert done.returncode == 0, done.stderr
        said[line] = done.stdout
    words = list(said.values())
    # The same model, by its folder and by its spec and weights.
    assert words[1] == words[3]
    assert len(words[1].split(",")) == 8
    assert len(json.loads(words[2])["rows"]) == 2
    assert "300 ids" in words[4]
    assert "320, 20 of them padding" in words[4]
    assert "海港" in words[5]
    answers = words[-2:]
    assert len(answers[0].split(",")) == 8
    assert [row["prompt"] for row in json.loads(answers[1])["rows"]] == [[5, 6, 7, 1], [8, 9, 1]]
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(PAGE, "python")), PAGE, "exec", dont_inherit=True), {})
    # One line for the batch, one for each of eight tokens.
    assert len(capsys.readouterr().out.splitlines()) == 9
