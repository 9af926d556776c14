"""The page about published models: its configuration is the spec that it prints, its table names every family."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from archc import registry

ROOT = Path(__file__).parents[2]
PAGE = "import.md"


def test_the_configuration_is_the_spec_that_the_page_prints(
    blocks: Callable[[str, str], list[str]], run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(blocks(PAGE, "json")[0], encoding="utf-8")
    (line,) = re.findall(r"`(archc import config\.json --name \w+)`", (ROOT / "docs" / PAGE).read_text("utf-8"))
    done = run(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks(PAGE, "yaml")[0]


def test_every_family_is_in_the_table() -> None:
    text = (ROOT / "docs" / PAGE).read_text("utf-8")
    table = text[text.index("| `model_type` | models |") : text.index("Each is one module of")]
    rows = [line.split("|")[1] for line in table.splitlines()[2:] if line.startswith("|")]
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == registry.names("checkpoint")


def test_the_options_that_the_page_names_exist() -> None:
    from archc.cli.convert import command as convert
    from archc.cli.import_ import command as import_

    known = {option for command in (convert, import_) for parameter in command.params for option in parameter.opts}
    named = set(re.findall(r"`(--[a-z-]+)", (ROOT / "docs" / PAGE).read_text("utf-8")))
    assert named <= known | {"--weights"}
