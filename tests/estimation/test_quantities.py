"""Every number of an estimate is the sum of sources that can be named."""

from __future__ import annotations

import pytest

from archc.errors import ArchcError
from archc.estimation.activations import measure_activations
from archc.estimation.estimate import Estimate, estimate
from archc.spec.shipped import shipped_specs

WHOLE_FLOPS = ("flops.prefill", "flops.decode", "flops.train_step", "flops.forward")


def value_of(found: Estimate, name: str) -> int:
    """The number as the estimate has it."""
    section, _, field = name.partition(".")
    if section == "activations":
        sizes = {"batch_size": found.batch_size, "seq_len": found.max_model_len, "source_len": found.source_len}
        return measure_activations(found.graph, **sizes, dtype=found.dtype, recompute=field).bytes  # type: ignore[arg-type]
    if section == "flops":
        return found.flops.numbers[field]
    return found.cache.total(field) if section == "cache" else getattr(getattr(found, section), field)


@pytest.mark.parametrize("name", shipped_specs())
def test_sources_add_up_to_every_quantity(name: str):
    found = estimate(name, batch_size=3, max_model_len=5000)
    for quantity in found.quantities():
        explained = found.explain(quantity)
        assert explained.value == value_of(found, quantity), quantity
        assert sum(explained.by_part().values()) == explained.value
        assert sum(explained.by_layer().values()) == explained.value
        assert explained.unit
        assert explained.value == 0 or explained.formula


def test_paths_of_weights_and_states_are_those_of_the_graph():
    found = estimate("kimi-linear-48b-a3b")
    weights = {source.path for source in found.explain("weights.bytes").sources}
    assert weights <= set(found.graph.params())
    states = {source.path for source in found.explain("cache.used_bytes").sources}
    assert states <= set(found.graph.states())


def test_where_the_bytes_of_a_hybrids_cache_come_from():
    # problems.md 5: seven MLA layers grow, twenty KDA layers hold states.
    found = estimate("kimi-linear-48b-a3b", max_model_len=131072)
    growth = found.explain("cache.bytes_per_token")
    assert (growth.value, growth.unit) == (8064, "bytes per token and sequence")
    (latent,) = growth.sources
    assert (latent.op, latent.part, latent.count) == ("latent_attention", "mixer.mla", 7)
    assert latent.path.endswith(".mixer.attention.latent")
    states = found.explain("cache.recurrent_bytes_per_sequence")
    assert states.value == 41_943_040
    used = found.explain("cache.used_bytes")
    assert used.formula == found.cache.formula
    assert {source.op for source in used.sources} == {"latent_attention", "linear_attention", "causal_conv"}
    # One KDA layer has a dense feed-forward, so it is a layer kind of its own.
    assert list(states.by_layer().values()) == [19 * 2_097_152, 2_097_152]


def test_an_unknown_quantity_names_the_nearest():
    with pytest.raises(ArchcError, match=r"Did you mean cache\.used_bytes\?"):
        estimate("tiny-llama").explain("cache.used_byte")


def test_a_quantity_is_plain_data():
    data = estimate("tiny-llama").explain("weights.bytes").to_json()
    assert data["unit"] == "bytes"
    assert sum(source["value"] for source in data["sources"]) == data["value"]
    formulas = {source["path"]: source["formula"] for source in data["sources"]}
    assert formulas["embed_tokens.weight"] == "1024 x 128 x 2 B"


def test_where_activations_come_from():
    whole = estimate("tiny-llama", batch_size=2, max_model_len=12, dtype="float32")
    found = whole.explain("activations.none")
    assert found.formula == "37996*batch*seq + 128*seq"
    ((largest, *_), share) = found.sources, found.by_layer()["attn + mlp"] / found.value
    assert (largest.path, largest.op, largest.count) == ("layers.0.ffn", "gated_activation", 4)
    assert largest.value == 4 * 2 * (2 * 12 * 352) * 4
    assert 0.95 < share < 1
    full = {source.path: source for source in whole.explain("activations.full").sources}
    assert (full["layers.0.add"].count, full["layers.0.add"].formula) == (3, "512*batch*seq")
    assert full["embed_tokens"].formula == "512*batch*seq"
