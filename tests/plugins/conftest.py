"""The contract, imported late: without torch its tests are skipped, and the others run."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def contract():
    """``check_spec`` of archc.testing."""
    pytest.importorskip("torch")
    from archc.testing.contract import check_spec

    return check_spec
