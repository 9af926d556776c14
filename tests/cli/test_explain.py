"""``archc estimate --explain``."""

from __future__ import annotations

import json

from click.testing import CliRunner

from archc.cli.main import main


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["estimate", *words])
    return done.exit_code, done.output


def test_a_number_is_explained_by_its_formula_its_parts_and_its_tensors():
    code, text = run("kimi-linear-48b-a3b", "--max-model-len", "128k", "--explain", "cache.used_bytes")
    assert code == 0
    assert text.startswith("cache.used_bytes = 1,100,382,208 bytes (1.025 GiB)")
    assert "8064*(past + seq)*batch + 43417600*batch" in text
    assert "mixer.mla  1,056,964,608  96.05%" in text
    assert "layers.3.mixer.attention.latent" in text


def test_several_quantities_as_data():
    code, text = run("tiny-llama", "--explain", "weights.bytes", "--explain", "flops.decode", "--json")
    assert code == 0
    data = json.loads(text)
    assert [item["name"] for item in data] == ["weights.bytes", "flops.decode"]
    assert all(item["value"] == sum(source["value"] for source in item["sources"]) for item in data)


def test_an_unknown_quantity_ends_in_2_and_names_the_nearest():
    code, text = run("tiny-llama", "--explain", "cache.use")
    assert (code, "Did you mean cache.used_bytes?" in text) == (2, True)
