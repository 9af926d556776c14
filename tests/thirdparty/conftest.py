"""A package of its own project, installed by pip into a folder that other processes have on their path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

Run = Callable[..., str]
PACKAGE = Path(__file__).parent / "archc_retention"


def install(source: Path, site: Path, scratch: Path) -> None:
    """Install a project as its author would, without a network; where pip can't build, as pip would have laid it out."""
    copy = scratch / source.name
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    if is_installed("pip") and is_installed("hatchling"):
        offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
        command = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(site), str(copy)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    else:
        lay_out(copy, site)


def is_installed(package: str) -> bool:
    """Whether a distribution is there. Its modules are not looked for: finding pip makes setuptools warn of distutils."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def lay_out(copy: Path, site: Path) -> None:
    """The files of an installed project: its one package, and the metadata that archc reads."""
    project = tomllib.loads((copy / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module = project["name"].replace("-", "_")
    shutil.copytree(copy / module, site / module)
    metadata = site / f"{module}-{project['version']}.dist-info"
    metadata.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(head, encoding="utf-8")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where archc_retention is installed."""
    folder = tmp_path_factory.mktemp("site")
    install(PACKAGE, folder, tmp_path_factory.mktemp("source"))
    return folder


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Run:
    """What a new process prints that has the package on its path, in a folder of its own."""

    def run(*arguments: object) -> str:
        environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *(str(argument) for argument in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
