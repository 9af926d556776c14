"""The page about attention: its table is computed and has every installed kind, its command prints what it shows."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from archc import registry
from archc.cli.main import archc

ROOT = Path(__file__).parents[2]
Blocks = Callable[[str, str], list[str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
MAX_PICTURE_BYTES = 60_000


@pytest.fixture(scope="module")
def attention_page() -> ModuleType:
    where = importlib.util.spec_from_file_location("attention_page", ROOT / "docs" / "attention_page.py")
    assert where is not None
    assert where.loader is not None
    module = importlib.util.module_from_spec(where)
    with pytest.MonkeyPatch.context() as patch:
        # As for a script, whose folder is where it imports from.
        patch.syspath_prepend(ROOT / "docs")
        where.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(attention_page: ModuleType) -> str:
    return attention_page.PAGE.read_text(encoding="utf-8")


def test_the_table_is_the_one_that_is_computed(attention_page: ModuleType, page: str):
    assert attention_page.page_text(page) == page, "run python docs/attention_page.py"


@pytest.mark.parametrize("family", ["mixer", "position", "score"])
def test_every_installed_kind_has_a_line(attention_page: ModuleType, family: str):
    told = {entry.kind for entry in attention_page.ENTRIES}
    told |= {f"score.{entry.keys['score']['kind']}" for entry in attention_page.ENTRIES if "score" in entry.keys}
    missing = {f"{family}.{name}" for name in registry.names(family)} - told - {"position.none"}
    assert not missing, f"{missing} are new: give them a line in docs/attention_names.py"


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        # By hand: 4 x 512 x 512 weights; (n + 1) / 2 pairs a token, 4 x 512 FLOPs each; 2 x 512 numbers a token, of 2 bytes.
        ("multi-head (MHA)", (1048576, 2 * 1048576 + 4097 * 1024, 2 * 1048576 + 4096 * 2048, 4096 * 1024 * 2)),
        # Keys and values of one head of 64 instead of eight.
        ("multi-query (MQA)", (524288 + 65536, 2 * 589824 + 4097 * 1024, 2 * 589824 + 4096 * 2048, 4096 * 128 * 2)),
        # Every pair.
        ("cross attention", (1048576, 2 * 1048576 + 4096 * 2048, 2 * 524288 + 4096 * 2048, 4096 * 1024 * 2)),
        # The reader has two projections.
        (
            "keys and values of an earlier layer (YOCO, CLA)",
            (524288, 2 * 524288 + 4097 * 1024, 1048576 + 4096 * 2048, None),
        ),
    ],
)
def test_figures_are_those_that_a_hand_counts(attention_page: ModuleType, name: str, figures: tuple[int | None, ...]):
    (entry,) = (entry for entry in attention_page.ENTRIES if entry.name == name)
    cells = [cell.strip() for cell in attention_page.row(entry).strip("|").split("|")]
    assert cells[6:10] == ["-" if figure is None else f"{figure:,}" for figure in figures]


def test_specs_of_a_line_have_its_kind(attention_page: ModuleType):
    found = {entry.name: attention_page.used_by(entry) for entry in attention_page.ENTRIES}
    assert found["latent (MLA)"][:2] == ["deepseek-v2", "deepseek-v2-lite"]
    assert "falcon-7b" in found["multi-query (MQA)"]
    assert "falcon-7b" not in found["grouped-query (GQA)"]
    assert found["cross attention"] == ["t5-base", "transformer-base-2017", "tiny-t5"]
    assert found["windows and global tokens (Longformer)"] == ["longformer-base-4096"]
    assert "gpt2" not in found["bidirectional (BERT)"]


def test_links_of_the_table_lead_to_files(page: str):
    links = re.findall(r"\]\((?!https:)([^)#]+)\)", page)
    assert links
    assert all((ROOT / "docs" / link).exists() for link in links)


def test_pictures_are_small_and_each_is_made_by_a_command_of_the_page(attention_page: ModuleType, page: str):
    made = [words[words.index("-o") + 1] for words in attention_page.commands(page)]
    assert made == re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)
    for name in made:
        data = (ROOT / "docs" / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < MAX_PICTURE_BYTES


def test_commands_of_the_page_have_options_that_there_are(attention_page: ModuleType, page: str):
    command = archc.get_command(None, "attention")  # type: ignore[arg-type]
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    for words in attention_page.commands(page):
        assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.torch
def test_the_command_prints_what_the_page_shows(blocks: Blocks, run: Run, tmp_path: Path):
    pytest.importorskip("matplotlib")
    first = blocks("attention.md", "console")[0].strip()
    (shown,) = blocks("attention.md", "text")
    done = run(f"{first.removeprefix('$ ')} --device cpu", tmp_path)
    assert done.returncode == 0, done.stderr
    assert shown.strip() in done.stdout.strip()
    assert (tmp_path / "attention-causal.png").exists()
