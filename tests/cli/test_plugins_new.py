"""``archc plugins new``: the package that is written installs, and its test passes as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from archc.cli.plugin_templates import KINDS
from tests.thirdparty.conftest import install, lay_out


def test_a_package_holds_its_metadata_its_kind_and_its_test(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("plugins", "new", "my_mixer")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].strip() == "pip install -e archc-my-mixer && pytest archc-my-mixer"
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "archc-my-mixer/README.md",
        "archc-my-mixer/archc_my_mixer/__init__.py",
        "archc-my-mixer/archc_my_mixer/my_mixer.py",
        "archc-my-mixer/pyproject.toml",
        "archc-my-mixer/tests/test_my_mixer.py",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["archc-my-mixer"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """A package of every family, side by side."""
    from click.testing import CliRunner

    from archc.cli.main import archc

    folder = tmp_path_factory.mktemp("packages")
    for family in KINDS:
        arguments = ["plugins", "new", f"new_{family}", "--family", family, "-o", str(folder / family)]
        assert CliRunner().invoke(archc, arguments).exit_code == 0
    return folder


@pytest.mark.torch
def test_a_new_package_of_every_family_installs_and_passes_its_test(packages, tmp_path):
    pytest.importorskip("torch")
    site = tmp_path / "site"
    site.mkdir()
    # One by pip, which takes its time; the others as pip lays them out.
    install(packages / "mixer", site, tmp_path / "source")
    for family in KINDS:
        if family != "mixer":
            lay_out(packages / family, site)
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    tests = [str(packages / family / "tests") for family in KINDS]
    options = ["-q", "-s", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tmp_path}"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(KINDS)} passed" in done.stdout
    assert done.stdout.count("activations: what autograd keeps for backward is what the ops say") == len(KINDS)
    from archc.testing.onnx_values import missing

    if missing() is None:
        assert done.stdout.count("ONNX = torch: whole") == len(KINDS)


def test_what_is_written_is_clean(packages):
    if find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    for arguments in (("check", "--select", "E,F,W,I,B,UP,N"), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", arguments[0], "--isolated", "--line-length", "120", *arguments[1:]]
        done = subprocess.run([*command, str(packages)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kda",), "mixer 'kda' is offered by archc-compiler"),
        (("plugins",), "a package named archc_plugins is installed already"),
        (("My-Mixer",), "a kind is named in lower case"),
        (("class",), "a kind is named in lower case"),
        (("../up",), "a kind is named in lower case"),
        (("",), "a kind is named in lower case"),
        (("x" * 41,), "at most 40 characters"),
        (("thing", "--family", "mixers"), "there is nothing to start a 'mixers' from; families: mixer, ffn"),
        (("thing", "--family", "tokenizer"), "there is nothing to start a 'tokenizer' from"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_and_nothing_is_written(invoke, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = invoke("plugins", "new", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(invoke, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.md").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in (folder, tmp_path / "file", tmp_path / "link"):
        result = invoke("plugins", "new", "thing", "-o", out)
        assert result.exit_code == 2
        assert f"{out} exists already; nothing was written" in result.stderr
    assert (folder / "notes.md").read_text() == (tmp_path / "file").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "mine"]


def test_a_write_that_fails_leaves_nothing_behind(invoke, tmp_path, monkeypatch):
    def fail(self: Path, *arguments: object, **words: object) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", fail)
    result = invoke("plugins", "new", "thing", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert list(tmp_path.iterdir()) == []
