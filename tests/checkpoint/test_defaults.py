"""What a file leaves out is what transformers' class assumes: a file with nothing in it is the class's own dump."""

from __future__ import annotations

import json
from typing import Any

import pytest

from archc import registry
from archc.checkpoint.family import Nested
from archc.checkpoint.importing import import_data
from archc.errors import ArchcError
from archc.graph.lockfile import to_text

FAMILIES = [name for name in registry.names("checkpoint") if not issubclass(registry.load("checkpoint", name), Nested)]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_empty_file_is_the_class_as_it_is_made(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("transformers reads it as another family")
    whole = json.loads(transformers.CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    assert made_of({"model_type": model_type}) == made_of({**whole, "model_type": model_type})


def made_of(config: dict[str, Any]) -> str | None:
    """The graph's text; None where the class as it is made is no model (heads of odd width, no number of experts)."""
    try:
        return to_text(import_data(config, name="defaults").graph)
    except ArchcError:
        assert config["model_type"] in ("deepseek_v2", "glm4_moe")
        return None


@pytest.mark.parametrize("model_type", FAMILIES)
def test_class_defaults_are_the_classes(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("transformers reads it as another family")
    fields = transformers.CONFIG_MAPPING[model_type]
    for key, value in registry.load("checkpoint", model_type).defaults.items():
        # Keys that only older files have are no fields of the class, and what it works out is null there.
        stated = getattr(fields, key, None)
        if stated is not None and value is not None and not isinstance(stated, property):
            assert value == stated, key
