"""``archc show --diagram``: the file it writes, and the places where it writes none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import Result

from archc.drawing.diagram import diagram
from archc.spec.load import load_spec

Invoke = Callable[..., Result]


def test_a_diagram_is_written_as_a_whole_and_replaces_an_older_one(invoke: Invoke, tmp_path: Path):
    out = tmp_path / "model.svg"
    out.write_text("older")
    result = invoke(
        "show", "tiny-kimi-linear", "--diagram", out, "--set", "stack.num_layers=8", "--set", "stack.mixer=kda"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"wrote {out}\n"
    assert out.read_text("utf-8") == diagram(load_spec("tiny-kimi-linear", ["stack.num_layers=8", "stack.mixer=kda"]))
    assert ElementTree.fromstring(out.read_text("utf-8")).tag.endswith("svg")
    assert os.listdir(tmp_path) == ["model.svg"]


def test_a_folder_is_never_replaced(invoke: Invoke, tmp_path: Path):
    folder = tmp_path / "model.svg"
    folder.mkdir()
    result = invoke("show", "tiny-llama", "--diagram", folder)
    assert result.exit_code == 2
    assert "is a folder" in result.stderr
    assert os.listdir(folder) == []


@pytest.mark.parametrize("name", ["model.png", "model.pdf", "model", "model.svgz"])
def test_another_format_is_refused_with_what_to_do(invoke: Invoke, tmp_path: Path, name: str):
    result = invoke("show", "tiny-llama", "--diagram", tmp_path / name)
    assert result.exit_code == 2
    assert "written as .svg; browsers" in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_place_that_is_not_there_is_named(invoke: Invoke, tmp_path: Path):
    result = invoke("show", "tiny-llama", "--diagram", tmp_path / "no" / "model.svg")
    assert result.exit_code == 2
    assert f"{tmp_path / 'no'} is no folder" in result.stderr


def test_a_bad_spec_leaves_the_older_file(invoke: Invoke, tmp_path: Path, bad_spec: Path):
    out = tmp_path / "model.svg"
    out.write_text("older")
    result = invoke("show", bad_spec, "--diagram", out)
    assert result.exit_code == 2
    assert "mixers.attn.num_heads" in result.stderr
    assert out.read_text() == "older"


@pytest.mark.parametrize("other", ["--resolved", "--lock", "--json"])
def test_a_picture_and_a_text_are_not_made_at_once(invoke: Invoke, tmp_path: Path, other: str):
    result = invoke("show", "tiny-llama", "--diagram", tmp_path / "model.svg", other)
    assert result.exit_code == 2
    assert os.listdir(tmp_path) == []
