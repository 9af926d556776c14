"""Configurations of published models: what import makes of them costs what was counted without archc, to the digit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from archc.checkpoint.importing import Imported, import_data
from archc.errors import ArchcError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.graph.lockfile import to_text
from archc.spec.load import load_spec, loads_spec

HERE = Path(__file__).parent
UNSAID = {
    "kimi-linear-48b-a3b": ["cache=null"],
    "qwen3-next-80b-a3b": ["cache=null", "mtp=null"],
    "qwen3.5-9b-text": ["cache=null"],
    "qwen3.5-35b-a3b-text": ["cache=null"],
}
"""What a shipped spec says and the configuration doesn't: a layer in the file that predicts further tokens, a cache in
bfloat16 where it is the spec's dtype anyway."""
EXTENDED_ONLY = {"deepseek-v3.2": "mixer:mla"}
"""A kind of the shipped spec that is placed nowhere: another mixer extends it."""
CONFIGS = {file.stem: file for file in sorted((HERE / "configs").glob("*.json"))}
FIGURES: dict[str, dict[str, Any]] = json.loads((HERE / "published.json").read_text("utf-8"))


@cache
def imported(name: str) -> Imported:
    # The figures are of weights and caches in bfloat16, which the shipped specs have too.
    data = json.loads(CONFIGS[name].read_text("utf-8"))
    return import_data({**data, "dtype": "bfloat16"}, name=name, source=CONFIGS[name].name)


@cache
def shipped(name: str) -> Graph | None:
    for candidate in (name, name.removesuffix("-text")):
        try:
            spec = load_spec(candidate)
        except ArchcError:
            continue
        # A configuration says how many rows the table has, and not how many of them the tokenizer uses.
        changes = UNSAID.get(name, ())
        if spec.tokenizer.ids():
            changes = [f"tokenizer.vocab_size={spec.embedding.rows(spec.tokenizer.vocab_size)}", *changes]
        graph = expand(load_spec(candidate, changes))
        if name in EXTENDED_ONLY:
            del graph.plugins[EXTENDED_ONLY[name]]
        return graph
    return None


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_exactly_the_published_ones(name: str):
    found = estimate(imported(name).graph).parameters
    assert (found.total, found.active) == (FIGURES[name]["params_total"], FIGURES[name]["params_active"])


@pytest.mark.parametrize("name", CONFIGS)
def test_cache_growth_and_states_are_exactly_the_published_ones(name: str):
    found, known = estimate(imported(name).graph).cache.to_json(), FIGURES[name]
    assert found["bytes_per_token"] == known["bytes_per_token"]
    assert found["bytes_per_token_below_windows"] == known["bytes_per_token_below_windows"]
    assert found["recurrent_bytes_per_sequence"] == known["recurrent_bytes"]
    assert found["convolution_bytes_per_sequence"] == known["convolution_bytes"]


@pytest.mark.parametrize("name", CONFIGS)
def test_used_bytes_are_exactly_the_published_ones_at_every_length(name: str):
    graph = imported(name).graph
    for tokens, expected_bytes in FIGURES[name]["sequence_bytes"].items():
        cache_of = estimate(graph, max_model_len=int(tokens)).cache
        # The table keeps recurrent states in bf16, the specs in float32.
        halved_bytes = cache_of.total("recurrent_bytes_per_sequence") // 2
        assert cache_of.used_bytes - halved_bytes == expected_bytes, tokens


@pytest.mark.parametrize("name", CONFIGS)
def test_the_shipped_spec_is_what_import_gives(name: str):
    known = shipped(name)
    if known is None:
        pytest.skip("no spec of this model is shipped")
    found = expand(loads_spec(imported(name).text.replace(f"name: {name}\n", f"name: {known.name}\n", 1)))
    assert to_text(found) == to_text(known)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_spec_is_short_and_names_its_layers(name: str):
    text = imported(name).text
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 1000
    assert "mixers:\n" in text


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_is_accounted_for(name: str):
    data = json.loads(CONFIGS[name].read_text("utf-8"))
    accounts = {account.key: account for account in imported(name).accounts}
    assert set(data) <= set(accounts)
    assert all(account.note for account in accounts.values() if account.verdict != "used")


STRANGE: tuple[Any, ...] = (None, "x", -1, 0, 1e300, [], {}, True, 10**9, [1], {"a": 1}, 0.5)


@pytest.mark.parametrize("name", CONFIGS)
def test_values_that_make_no_sense_give_a_spec_or_an_error_and_no_crash(name: str):
    data = json.loads(CONFIGS[name].read_text("utf-8"))
    inside = [(key, inner) for key, value in data.items() if isinstance(value, dict) for inner in value]
    refused = 0
    places = [*((key, None) for key in data if key != "model_type"), *inside]
    for number, (key, inner) in enumerate(places):
        # Every place meets three of them, every one of them many places.
        for value in (STRANGE[(number + step) % len(STRANGE)] for step in (0, 4, 7)):
            changed = {**data, key: value if inner is None else {**data[key], inner: value}}
            try:
                import_data(changed, name="x")
            except ArchcError:
                refused += 1
    assert refused > len(places) // 2
