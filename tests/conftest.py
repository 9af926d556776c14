"""Settings of the whole suite: quiet threads, and what is skipped where an optional dependency is missing."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

# Tiny tensors: threads that spin between two products cost minutes as soon as the machine does anything else. Both are
# read when torch is loaded, so they are set before any test file is.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

LONG = (
    "test_compile",
    "test_activations_of_shipped_specs",
    "test_generate_page",
    "test_chosen_blocks",
    "test_kinds",
    "test_tensor_parallel",
    "test_worlds",
    "test_pipeline",
    "test_kills",
    "test_checkpoint_worlds",
    "test_train",
    "test_example",
    "test_forgetting",
)
"""Modules that take longest: they begin, so that no worker is left alone with one of them at the end."""
NEEDED_BY_MARKER = {"torch": ("torch",), "onnx": ("onnx", "onnx_ir", "onnxruntime")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The suite passes without torch and without onnx: what is marked for a missing one is skipped."""
    items.sort(key=lambda item: item.path.stem not in LONG)
    for marker, modules in NEEDED_BY_MARKER.items():
        missing = [module for module in modules if find_spec(module) is None]
        for item in items:
            if missing and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=f"{', '.join(missing)} not installed"))
