"""Bad specs are judged as a user's are: with the installed kinds alone."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="module")
def kinds() -> dict[tuple[str, str], Any]:
    return {}
