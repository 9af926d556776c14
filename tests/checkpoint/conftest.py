"""Tiny random transformers models, saved as they save themselves, and what archc makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from archc.cli.main import archc
from tests.parity.families import FAMILIES
from tests.parity.oracle import Oracle, oracle_of

BY_NAME = {family.name: family for family in FAMILIES}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """Family name -> (its oracle, the folder that save_pretrained wrote); made once."""

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
