"""The oracles, one a family and process. transformers is asked for late, so that the suite passes without it."""

from __future__ import annotations

import os
import warnings

import pytest

from tests.parity.families import FAMILIES

OLDEST_TRANSFORMERS = "5.24"
"""The first with Kimi Linear, and the one whose tensor layouts ``weights.py`` knows."""


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request):
    return request.param


@pytest.fixture
def oracle(family):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        # Deprecations inside transformers and what it imports are nobody's to fix here.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        transformers = pytest.importorskip("transformers", minversion=OLDEST_TRANSFORMERS)
    transformers.logging.set_verbosity_error()

    from tests.parity.oracle import oracle_of

    return oracle_of(family.name)
