"""What is generated of the language is current, and what is written by hand holds."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
from click.testing import CliRunner

from archc import registry
from archc.cli.main import archc
from archc.errors import SpecError
from archc.spec.described import described
from archc.spec.load import load_spec, loads_spec
from archc.spec.patterns import copies, expand, parse
from archc.spec.reader import read_file
from archc.spec.schedule import LayerPlan
from archc.spec.schema import Spec, Stack
from archc.spec.shipped import shipped_specs
from archc.spec.slots import Slot

ROOT = Path(__file__).parents[2]
Blocks = Callable[[str, str], list[str]]
KINDS = [(family, name) for family in registry.FAMILIES for name in registry.names(family)]
FIRST_LINE = "# yaml-language-server: $schema="


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    where = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert where is not None
    assert where.loader is not None
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


def test_the_schema_file_is_that_of_the_installed_kinds(reference: ModuleType):
    text = reference.SCHEMA.read_text(encoding="utf-8")
    assert text == reference.schema_text(), "run make schema"
    assert CliRunner().invoke(archc, ["schema"]).stdout == text


def test_the_tables_of_the_language_are_those_of_the_installed_kinds(reference: ModuleType):
    page = reference.LANGUAGE.read_text(encoding="utf-8")
    assert page == reference.language_text(page), "run make schema"
    assert CliRunner().invoke(archc, ["schema", "--markdown"]).stdout in page


def test_every_shipped_spec_names_the_schema_file_and_is_valid_by_it(reference: ModuleType):
    validator = jsonschema.Draft202012Validator(json.loads(reference.SCHEMA.read_text(encoding="utf-8")))
    assert len(shipped_specs()) > 20
    for path in shipped_specs().values():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        assert first.startswith(FIRST_LINE), path.name
        assert (path.parent / first.removeprefix(FIRST_LINE)).resolve() == reference.SCHEMA, path.name
        data = read_file(str(path), str(path))[0].plain()
        assert [error.message for error in validator.iter_errors(data)] == [], path.name


@pytest.mark.parametrize(("family", "name"), KINDS, ids=[f"{family}.{name}" for family, name in KINDS])
def test_every_key_of_every_kind_has_a_meaning(family: str, name: str):
    kind = Slot(family).load(name)
    assert kind.__doc__
    assert [field for field in kind.model_fields if field not in described(kind)] == []


def test_every_key_of_the_sections_has_a_meaning():
    assert [field for model in (Spec, Stack) for field in model.model_fields if field not in described(model)] == []


def test_the_spec_of_the_page_loads_and_so_does_its_child(blocks: Blocks, tmp_path: Path):
    whole, translator, siblings, child = blocks("language.md", "yaml")
    (tmp_path / "small-hybrid.yaml").write_text(whole)
    (tmp_path / "child.yaml").write_text(child)
    assert loads_spec(translator).schedule() == (LayerPlan("self", "mlp", "to_encoder"),) * 6
    assert [plan.mixer for plan in load_spec(tmp_path / "small-hybrid.yaml").schedule()] == [
        "kda",
        "kda",
        "kda",
        "mla",
    ] * 3
    deep = load_spec(tmp_path / "child.yaml")
    assert (deep.stack.num_layers, deep.mixers["mla"].num_heads, deep.mixers["kda"].num_heads) == (24, 8, 4)
    around = whole[: whole.index("mixers:")] + siblings + whole[whole.index("ffns:") :]
    spec = loads_spec(re.sub(r"\(kda\*3 mla\)\*", "(local*2 global)*", around))
    assert (spec.mixers["local"].num_kv_heads, spec.mixers["local"].sliding_window) == (4, 1024)


def test_the_patterns_of_the_page_fit_the_depths_it_says():
    page = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \| ([0-9., ]+) \|$", page, re.MULTILINE)
    assert len(rows) == 10
    for pattern, depths in rows:
        items = parse(pattern)
        fits = [int(depth) for depth in depths.split(", ") if depth != "..."]
        for depth in fits:
            assert len(expand(items, depth)) == depth
        if "..." in depths:
            # Between the first depths nothing fits that is not listed.
            first, second, *_ = fits
            assert [depth for depth in range(1, second + 1) if copies(items, depth)] == [first, second]


BEYOND_A_SCHEMA = {
    # Two keys, or a kind and its surroundings, that don't fit each other.
    "added-position-in-a-mixer",
    "slopes-on-latent-attention",
    "groups-that-do-not-divide",
    "head-too-wide-to-turn",
    "keys-of-a-later-layer",
    "keys-of-an-unknown-mixer",
    "heads-that-do-not-divide",
    "learned-positions-without-a-length",
    "more-experts-chosen-than-there-are",
    "more-groups-chosen-than-there-are",
    "more-kv-heads-than-heads",
    "name-in-both-sections",
    "odd-head-under-rope",
    "scale-of-an-unknown-name",
    "shared-width-without-shared-experts",
    "width-in-an-expert",
    "window-and-chunk",
    # What the names of a pattern are, and how many layers it comes to.
    "layers-without-a-sub-layer",
    "pattern-nested-too-deep",
    "pattern-not-closed",
    "pattern-of-ffns-in-the-mixer",
    "pattern-of-unknown-names",
    "pattern-open-inside",
    "pattern-that-leaves-layers-over",
    "pattern-that-would-be-huge",
    "pattern-too-long",
    "pattern-too-short",
    "pattern-with-two-open-items",
    # Which stacks there are, and what their mixers and blocks can do.
    "added-position-of-an-encoder-without-a-length",
    "block-without-a-place-for-cross",
    "cross-beside-half-layers",
    "cross-in-a-stack",
    "cross-in-an-encoder",
    "cross-of-a-mixer-that-has-none",
    "cross-of-an-ffn",
    "cross-of-another-length",
    "cross-of-unknown-name",
    "decoder-that-sees-everything",
    "decoder-without-cross",
    "encoder-of-a-mixer-that-goes-one-way",
    "encoder-that-is-causal",
    "mtp-with-an-encoder",
    "prefix-for-a-recurrent-mixer",
    "table-of-a-decoder-that-may-be-its-head",
    # What other entries and other files hold.
    "mistake-in-a-child",
    "mistake-in-a-parent",
    "parent-cycle",
    "parent-cycle-back",
    "parent-that-is-itself",
    "parent-that-is-not-there",
    "parent-without-its-ending",
    "sibling-cycle",
    "sibling-of-the-other-section",
    "sibling-that-is-not-there",
    "sibling-with-keys-its-kind-lacks",
}


def test_the_schema_refuses_every_bad_spec_that_a_schema_can_refuse(reference: ModuleType):
    validator = jsonschema.Draft202012Validator(json.loads(reference.SCHEMA.read_text(encoding="utf-8")))
    judged: dict[str, bool] = {}
    for path in sorted((ROOT / "tests" / "spec" / "bad").glob("*.yaml")):
        # A file that is no tree of plain values never comes to a schema.
        with suppress(SpecError):
            node, problems = read_file(str(path), str(path))
            if not problems:
                judged[path.stem] = validator.is_valid(node.plain())
    assert sum(not accepted for accepted in judged.values()) > 50
    assert {name for name, accepted in judged.items() if accepted} <= BEYOND_A_SCHEMA
    assert judged.keys() >= BEYOND_A_SCHEMA
