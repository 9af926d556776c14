"""The page as a file: small, quick, whole or not there, alone, and safe whatever a spec says."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import archc
from archc.errors import SpecError
from archc.planning.parallel import Parallel
from archc.spec.shipped import shipped_specs
from tests.reporting.twin import data_of
from tests.timing import timed

LIMIT_BYTES = 500_000
LIMIT_SECONDS = 2.0


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Write a report and read it."""

    def write(*specs: Any, **options: Any) -> str:
        return archc.report(list(specs), tmp_path / "report.html", **options).read_text("utf-8")

    return write


@pytest.mark.parametrize(
    "specs",
    [["kimi-linear-48b-a3b"], ["kimi-linear-48b-a3b", "deepseek-v4-flash", "nsa-demo"], ["minimax-text-01"]],
    ids=" ".join,
)
def test_a_page_is_small_and_quick(tmp_path: Path, specs: list[str]):
    with timed() as taken:
        path = archc.report(specs, tmp_path / "report.html")
    assert path.stat().st_size < LIMIT_BYTES
    assert taken.seconds < LIMIT_SECONDS


def test_the_most_specs_that_a_page_takes_fit_it(tmp_path: Path):
    names = list(shipped_specs())[:16]
    assert archc.report(names, tmp_path / "report.html").stat().st_size < 2 * LIMIT_BYTES
    with pytest.raises(SpecError, match="at most 16 specs"):
        archc.report([*names, "tiny-llama"], tmp_path / "report.html")


class Tags(HTMLParser):
    """Every attribute that could load something, and every element."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        loading = ("src", "href", "srcset", "data", "action", "poster", "xlink:href")
        self.loads += [value or "" for name, value in attrs if name in loading]
        assert not any(name.startswith("on") for name, _ in attrs)


def test_a_page_loads_nothing(written):
    html = written("kimi-linear-48b-a3b", "t5-base")
    tags = Tags()
    tags.feed(html)
    assert set(tags.loads) == {"data:,", "#overview"}
    assert not set(tags.names) & {"iframe", "object", "embed", "img", "base"}
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_only_the_page_s_own_script_may_run(written):
    html = written("tiny-llama")
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html


def test_a_hostile_text_is_escaped_everywhere(written, hostile):
    html = written(hostile)
    assert "<script>broken" not in html
    assert "<img" not in html
    tags = Tags()
    tags.feed(html)
    assert tags.names.count("script") == 2
    assert data_of(html)["models"][0]["name"] == hostile.name
    heading = re.search(r"<h1>(.*?)</h1>", html)
    assert heading is not None
    assert unescape(heading[1]) == hostile.name


def test_it_is_the_same_to_the_byte_each_time(written):
    assert written("kimi-linear-48b-a3b", "t5-base") == written("kimi-linear-48b-a3b", "t5-base")


def test_no_folder_of_its_writer_is_told(tmp_path: Path):
    folder = tmp_path / "secret-project"
    folder.mkdir()
    shutil.copy(shipped_specs()["tiny-llama"], folder / "mine.yaml")
    html = archc.report(folder / "mine.yaml", folder / "out.html").read_text("utf-8")
    assert "secret-project" not in html
    assert data_of(html)["commands"] == ["mine.yaml"]


def test_a_page_that_can_not_be_written_leaves_the_earlier_one(tmp_path: Path):
    file = tmp_path / "report.html"
    archc.report("tiny-llama", file)
    before = file.read_bytes()
    with pytest.raises(SpecError):
        archc.report("no-such-spec", file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_every_problem_is_said_at_once(tmp_path: Path):
    with pytest.raises(SpecError) as found:
        archc.report(
            "tiny-llama",
            tmp_path / "none" / "report.txt",
            batch_size=0,
            dtype="float12",
            gpu="h20",
            parallel=Parallel(tp=3, dp=2),
        )
    messages = "\n".join(problem.message for problem in found.value.problems)
    for text in (
        "report.txt: a report is written as .html",
        "none is no folder",
        "batch_size should be at least 1 (found 0)",
        "dtype 'float12' is unknown",
        "device 'h20' is unknown. Did you mean h200-sxm?",
        "tp should be 1, 2, 4, 8, 16 or 32 in a report (found 3)",
        "dp has no control in a report",
    ):
        assert text in messages


def test_settings_are_where_the_controls_stand(written):
    html = written("kimi-linear-48b-a3b", batch_size=4, max_model_len=2048, gpu="H100", parallel=Parallel(tp=8, ep=8))
    settings = data_of(html)["settings"]
    assert {name: settings[name] for name in ("batch", "length", "gpu", "tp", "pp", "experts")} == {
        "batch": "4",
        "length": "2048",
        "gpu": "h100-sxm",
        "tp": "8",
        "pp": "1",
        "experts": "ep",
    }


def test_what_a_page_is_made_of_is_in_the_package():
    names = {path.name for path in (files("archc.reporting") / "assets").iterdir()}
    assert {"page.html", "style.css", "page.js", "forms.js"} <= names
