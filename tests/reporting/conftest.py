"""A browser for the tests that need one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from archc.reporting.report import report
from archc.spec.load import loads_spec

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NEEDED = "ARCHC_NEEDS_BROWSER"
"""Set where a missing browser is a failure: CI installs one."""

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _missing(what: str) -> None:
    if os.environ.get(NEEDED):
        pytest.fail(f"{what}, and {NEEDED} is set")
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, one for a module."""
    path = os.environ.get("ARCHC_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        _missing("there is no Chromium (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
        raise
    with sync_playwright() as runner:
        started = runner.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


class Page:
    """A report in the browser: what it loaded and said, and what its cells hold."""

    def __init__(self, tab: Any, file: Path) -> None:
        self.tab = tab
        tab.set_default_timeout(10_000)
        self.said: list[str] = []
        self.asked: list[str] = []
        tab.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        tab.on("request", lambda request: self.asked.append(request.url))
        tab.goto(file.as_uri())

    def table(self, name: str) -> dict[str, list[int | None]]:
        """Row -> the whole numbers behind its cells; None where a cell has none."""
        return {key: [None if cell is None else int(cell) for cell in row] for key, row in self._cells(name, "exact")}

    def numbers(self, name: str) -> dict[str, list[float]]:
        """Row -> the numbers behind those of its cells that are no whole ones."""
        rows = {key: [float(cell) for cell in row if cell is not None] for key, row in self._cells(name, "number")}
        return {key: row for key, row in rows.items() if row}

    def _cells(self, name: str, what: str) -> list[tuple[str, list[str | None]]]:
        return self.tab.evaluate(
            """([name, what]) => [...document.querySelectorAll(`#${name} tr[data-key]`)].map((row) =>
            [row.dataset.key, [...row.querySelectorAll("td")].map((cell) => cell.dataset[what] ?? null)])""",
            [name, what],
        )

    def write(self, control: str, text: str) -> None:
        """Put a text into a box."""
        self.tab.locator(f"#{control}").fill(text)

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Write a report of some specs and open it: ``opened("llama-3-8b", width=390, dark=True, batch_size=2)``."""
    contexts: list[Any] = []

    def open_page(*specs: Any, width: int = 1280, height: int = 900, dark: bool = False, **options: Any) -> Page:
        file = report(list(specs), tmp_path / "report.html", **options)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", offline=True
        )
        contexts.append(context)
        return Page(context.new_page(), file)

    yield open_page
    for context in contexts:
        context.close()


HOSTILE = "</script><script>broken=1</script><img src=x onerror=broken=1>&amp;\"'`${broken=1}"


@pytest.fixture
def hostile() -> Any:
    """A spec whose every free text would break out of a careless page."""
    quoted = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
    return loads_spec(
        f"""
spec_version: 1
name: "{quoted}"
description: "{quoted}"
tokenizer: {{kind: external, vocab_size: 1000}}
embedding: {{hidden_size: 64, tie_word_embeddings: true}}
position: none
norm: {{kind: rms_norm, eps: 1e-5}}
mixers:
  attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16}}
ffns:
  mlp: {{kind: swiglu, intermediate_size: 128}}
stack: {{num_layers: 2, block: pre_norm, mixer: attn, ffn: mlp}}
"""
    )
