"""``archc estimate --explain``."""

from __future__ import annotations

import json
from collections.abc import Callable

from click.testing import Result

Invoke = Callable[..., Result]


def test_a_number_is_explained_by_its_formula_its_parts_and_its_tensors(invoke: Invoke):
    done = invoke("estimate", "kimi-linear-48b-a3b", "--max-model-len", "128k", "--explain", "cache.used_bytes")
    assert done.exit_code == 0
    assert done.stdout.startswith("cache.used_bytes = 1,100,382,208 bytes (1.025 GiB)")
    assert "8064*(past + seq)*batch + 43417600*batch" in done.stdout
    assert "mixer.mla  1,056,964,608  96.05%" in done.stdout
    assert "layers.3.mixer.attention.latent" in done.stdout


def test_several_quantities_as_data(invoke: Invoke):
    done = invoke("estimate", "tiny-llama", "--explain", "weights.bytes", "--explain", "flops.decode", "--json")
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert [item["name"] for item in data] == ["weights.bytes", "flops.decode"]
    assert all(item["value"] == sum(source["value"] for source in item["sources"]) for item in data)


def test_an_unknown_quantity_ends_in_2_and_names_the_nearest(invoke: Invoke):
    done = invoke("estimate", "tiny-llama", "--explain", "cache.use")
    assert done.exit_code == 2
    assert "Did you mean cache.used_bytes?" in done.stderr
