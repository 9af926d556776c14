"""Tiny random transformers models, saved as they save themselves, and what archc makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from archc.cli.main import archc
from tests.parity.family import Family

if TYPE_CHECKING:
    from tests.parity.oracle import Oracle

BY_NAME: dict[str, Family] = {}
if find_spec("torch") is not None:
    # Their weight maps are written with torch; tests of configurations alone run without it.
    from tests.parity.families import FAMILIES

    BY_NAME = {family.name: family for family in FAMILIES}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """Family name -> (its oracle, the folder that save_pretrained wrote); made once."""

    from tests.parity.oracle import oracle_of

    @cache
    def get(name: str) -> tuple[Oracle, Path]:
        oracle = oracle_of(name)
        folder = tmp_path_factory.mktemp(name)
        oracle.model.save_pretrained(folder)
        return oracle, folder

    return get


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run the command line in this process."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(archc, [str(argument) for argument in arguments], catch_exceptions=False)

    return run


def changed_tensors(folder: Path, other: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """A copy of a checkpoint with other tensors."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, other)
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    return other


def same_bits(one: Path, other: Path) -> bool:
    """Whether two folders hold the same names, dtypes, shapes and bits, in whatever files."""
    import torch
    from safetensors.torch import load_file

    def bits(tensor: Any) -> Any:
        return tensor.contiguous().view(-1).view(torch.uint8)

    def tensors(folder: Path) -> dict[str, Any]:
        return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}

    first, second = tensors(one), tensors(other)
    return first.keys() == second.keys() and all(
        (tensor.dtype, tensor.shape) == (second[name].dtype, second[name].shape)
        and bits(tensor).equal(bits(second[name]))
        for name, tensor in first.items()
    )
