from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from archc.spec.json_schema import json_schema
from archc.spec.reader import read_file, read_text
from archc.spec.shipped import shipped_specs


@pytest.fixture(scope="module")
def validator(kinds: Any) -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _valid(validator: Any, text: str) -> bool:
    return validator.is_valid(read_text(text, "x")[0].plain())


def test_every_shipped_spec_validates(validator: Any) -> None:
    for path in shipped_specs().values():
        node, _ = read_file(str(path), str(path))
        assert [error.message for error in validator.iter_errors(node.plain())] == [], path.name


def test_every_reference_has_a_definition(validator: Any) -> None:
    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            here = {node["$ref"]} if "$ref" in node else set[str]()
            return here.union(*map(references, node.values()))
        return set[str]().union(*map(references, node)) if isinstance(node, list) else set()

    found = references(validator.schema)
    assert found
    assert {reference.removeprefix("#/$defs/") for reference in found} <= validator.schema["$defs"].keys()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("spec_version: 1", "spec_version: 2"),
        ("eps: 1e-5", "epsilon: 1e-5"),
        ("eps: 1e-5", "eps: small"),
        ("eps: 1e-5", "eps: 1e-5, extra: 1"),
        ("kind: rms_norm", "kind: nope"),
        ("norm: {kind: rms_norm, eps: 1e-5}", "norm: rms_norm"),
        ("num_layers: 4", "num_layers: 0"),
        ("  mixer: kda*3 mla\n", ""),
        ("  block: pre_norm\n", ""),
        ("head_dim: 16", "head_size: 16"),
        ("{kind: zforward, intermediate_size: 32}", "{extends: dense, unknown: 1}"),
    ],
)
def test_a_mistake_is_marked_in_an_editor(validator: Any, base: str, old: str, new: str) -> None:
    assert old in base
    assert _valid(validator, base)
    assert not _valid(validator, base.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{kind: zforward, intermediate_size: 32}", "{extends: dense, multiplier: 1/6}"),
        ("{kind: zforward, intermediate_size: 32}", "{kind: zforward, intermediate_size: 32, activation: null}"),
        ("mixer: kda*3 mla", "mixer: [kda, kda*2, mla]"),
        ("block: pre_norm", "block: {kind: zsandwich, residual_multiplier: 0.5}"),
        ("position: none", "position: {kind: zorder, theta: 1, limits: [0, 1], scaling: {kind: zstretch, factor: 2}}"),
        ("  block: pre_norm", "  block: pre_norm\nmtp: null\nhead: none\ncache: {policy: zwindow, window: 3}"),
    ],
)
def test_what_loads_is_not_marked(validator: Any, base: str, old: str, new: str) -> None:
    assert old in base
    text = base.replace(old, new, 1)
    if "mtp" in new:
        text = text.replace("\nmtp", "\n  mixer: kda\n  ffn: moe\nmtp").replace(
            "  mixer: kda*3 mla\n  ffn: dense moe*\n", ""
        )
    assert _valid(validator, text)


def test_a_child_requires_nothing_and_still_knows_its_keys(validator: Any) -> None:
    child = "extends: base.yaml\nname: child\nmixers: {kda: {num_heads: 3}, old: null}\nposition: {scaling: {factor: 2.0}}\n"
    assert _valid(validator, child)
    assert not _valid(validator, child.replace("num_heads", "num_headz"))
    assert not _valid(validator, child.replace("factor", "factr"))
