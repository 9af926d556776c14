"""The code of the pages about kinds and ops runs as it is printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from archc import registry

ROOT = Path(__file__).parents[2]
Blocks = Callable[[str, str], list[str]]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def entry_points(text: str) -> dict[tuple[str, str], str]:
    """(family, name) -> the name of the object, as a page's toml states it."""
    found: dict[tuple[str, str], str] = {}
    group = ""
    for line in text.splitlines():
        if heading := re.fullmatch(r'\[project\.entry-points\."archc\.(\w+)"\]', line):
            group = heading[1]
        elif entry := re.fullmatch(r'(\w+) = "[\w.]+:(\w+)"', line):
            found[group, entry[1]] = entry[2]
    return found


@pytest.mark.torch
@pytest.mark.onnx
@pytest.mark.parametrize("page", ["kinds.md", "ops.md"])
def test_what_the_page_builds_keeps_the_contract(page: str, blocks: Blocks, tmp_path: Path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    # In a file, since the texts under fields are read off the source.
    name = f"page_{Path(page).stem}"
    (tmp_path / f"{name}.py").write_text("\n\n".join(blocks(page, "python")))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(name)
    points = entry_points("\n".join(blocks(page, "toml")))
    assert points
    tests = [function for key, function in vars(module).items() if key.startswith("test_")]
    assert tests
    with registry.temporary({key: getattr(module, target) for key, target in points.items()}):
        for test in tests:
            test()


def test_links_between_pages_lead_somewhere():
    missing = [
        f"{page}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / page).read_text(encoding="utf-8"))
        if "://" not in link and not (ROOT / "docs" / link).exists()
    ]
    assert missing == []
