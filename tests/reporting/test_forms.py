"""A page's data gives what an estimate gives, for every shipped spec at any settings."""

from __future__ import annotations

import json

import pytest

from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.ir.size import CAPACITY, SEQ, ceil_div, minimum
from archc.reporting.forms import MAX_SAFE_INTEGER, Pool
from archc.reporting.model import model_of
from archc.spec.load import load_spec
from archc.spec.shipped import shipped_specs
from tests.reporting.twin import At, cache, evaluate, flops, weight_bytes

NAMES = [name for name, path in shipped_specs().items() if path.suffix == ".yaml"]

SETTINGS = [
    At(length=1),
    At(length=4097, batch=3),
    At(length=131072, batch=7, dtype="float8_e4m3fn", kv_dtype="int4", block=48),
    At(length=10**15, batch=2, source=77, dtype="int4", kv_dtype="float32"),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_data_gives_the_numbers_of_the_estimate(name: str):
    spec = load_spec(name)
    graph = expand(spec)
    # Through JSON, as a browser reads it.
    model = json.loads(json.dumps(model_of(spec, "", name).data))
    for at in SETTINGS:
        found = estimate(
            graph,
            batch_size=at.batch,
            max_model_len=at.length,
            source_len=at.source if graph.reads_encoder else None,
            dtype=at.dtype,
            kv_cache_dtype=at.kv_dtype,
            block_size=at.block,
        )
        kept = found.cache
        assert flops(model, at) == found.flops.numbers
        assert weight_bytes(model["weights"], at.dtype or model["dtype"]) == found.weights.bytes
        assert weight_bytes(model["mtp_weights"], at.dtype or model["dtype"]) == found.weights.mtp_bytes
        assert cache(model, at) == {
            "used": kept.used_bytes,
            "allocated": kept.allocated_bytes,
            "paged": kept.paged_bytes,
            "per_token": kept.bytes_per_token,
            "below_windows": kept.total("bytes_per_token_below_windows"),
            "per_source": kept.total("bytes_per_source_token"),
            "fixed": kept.total("recurrent_bytes_per_sequence") + kept.total("convolution_bytes_per_sequence"),
        }


def test_layers_add_up_to_what_is_not_outside_of_them():
    model = model_of(load_spec("kimi-linear-48b-a3b"), "", "").data
    at = At(length=4096)
    env = {"batch": 1, "seq": at.length, "past": 0, "source": at.length, "memory": at.length}
    layers = sum(evaluate(model, layer["flops"]["prefill"], env) for layer in model["layers"])
    head = 2 * 2304 * 163840
    assert layers + head == flops(model, at)["prefill"]


def test_equal_forms_stand_once_and_atoms_inside_atoms_are_kept():
    pool = Pool()
    inner = minimum(SEQ, 128)
    nested = ceil_div(minimum(inner * 3 + CAPACITY, SEQ * SEQ), 64)
    first = pool.form(nested + inner)
    assert pool.form(nested + inner) == first
    model = pool.to_json()
    env = {"seq": 1000, "capacity": 8}
    assert evaluate(model, first, env) == -(-min(128 * 3 + 8, 1000 * 1000) // 64) + 128
    assert len(model["forms"]) == 1


def test_what_a_double_cannot_hold_is_a_text():
    pool = Pool()
    place = pool.form(SEQ * (MAX_SAFE_INTEGER + 2) + MAX_SAFE_INTEGER)
    terms = pool.forms[place]
    assert [str(MAX_SAFE_INTEGER + 2), "seq"] in terms
    assert [MAX_SAFE_INTEGER] in terms


def test_a_page_fits_on_a_megabyte_even_for_the_largest_graphs():
    sizes = {name: len(json.dumps(model_of(load_spec(name), "", name).data)) for name in ("minimax-text-01", "kimi-k3")}
    assert max(sizes.values()) < 100_000, sizes
