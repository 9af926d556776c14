"""Comparisons: every number is an estimate's, at every length."""

from __future__ import annotations

import csv
import io
import json

import pytest

from archc.errors import ArchcError, SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.planning.comparison.compare import compare
from archc.planning.timing.estimate import estimate_time
from archc.spec.load import load_spec

LENGTHS = (4 << 10, 128 << 10, 1 << 20)
SPECS = ("deepseek-v3", "kimi-linear-48b-a3b", "gpt-oss-20b", "mamba2-2.7b", "bert-base-uncased", "t5-base")


@pytest.fixture(scope="module")
def found():
    return compare(SPECS, at=LENGTHS, batch_size=2)


def test_every_cell_is_that_model_s_estimate(found):
    assert found.models == list(SPECS)
    for column, name in enumerate(SPECS):
        graph = expand(load_spec(name))
        for length in LENGTHS:
            one = estimate(graph, max_model_len=length, batch_size=2)
            decodes = "decode" in one.flops.numbers
            expected = {
                ("parameters", None): one.parameters.total,
                ("active_parameters", None): one.parameters.active,
                ("mtp_parameters", None): one.parameters.mtp,
                ("weight_bytes", None): one.weights.bytes,
                ("cache_bytes_per_token", None): one.cache.bytes_per_token if decodes else None,
                ("cache_bytes_per_token_below_windows", None): (
                    one.cache.total("bytes_per_token_below_windows") if decodes else None
                ),
                ("state_bytes_per_sequence", None): (
                    one.cache.total("recurrent_bytes_per_sequence") + one.cache.total("convolution_bytes_per_sequence")
                    if decodes
                    else None
                ),
                ("cache_bytes", length): one.cache.used_bytes if decodes else None,
                ("prefill_flops", length): one.flops.numbers.get("prefill"),
                ("decode_flops", length): one.flops.numbers.get("decode"),
                ("forward_flops", length): one.flops.numbers.get("forward"),
                ("train_step_flops", length): one.flops.numbers["train_step"],
            }
            assert {key: found.row(*key).values[column] for key in expected} == expected
            per_token = found.row("train_flops_per_token", length).values[column]
            assert per_token == pytest.approx(one.flops.numbers["train_step"] / (2 * length), rel=1e-15)


def test_published_numbers_stand_in_the_table(found):
    # DeepSeek-V3's 70,272 bytes a token; of Kimi Linear seven layers of latents keep 576 bf16 numbers.
    growth = found.row("cache_bytes_per_token").values
    assert growth[:2] == (70_272, 7 * 576 * 2)
    assert found.row("parameters").values[3] == pytest.approx(2.7e9, rel=0.01)
    training = compare(["deepseek-v3"], at=4096).row("train_flops_per_token", 4096).values[0]
    assert training == pytest.approx(250e9, rel=0.01)


def test_the_least_of_a_row_of_costs_is_marked_and_sizes_have_no_best(found):
    assert found.row("parameters").least == ()
    assert found.row("cache_bytes", 1 << 20).least == (SPECS.index("mamba2-2.7b"),)
    assert found.row("state_bytes_per_sequence").least == (0, 2, 5)
    assert compare(["gpt2", "gpt2"]).row("weight_bytes").least == ()


def test_a_row_that_does_not_exist_is_an_error(found):
    with pytest.raises(KeyError):
        found.row("cache_bytes")


def test_csv_and_json_hold_exact_numbers(found):
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert len(rows) == len(found.rows)
    cell = next(row for row in rows if (row["quantity"], row["length_tokens"]) == ("cache_bytes", "131072"))
    assert int(cell["kimi-linear-48b-a3b"]) == found.row("cache_bytes", 1 << 17).values[1]
    assert (cell["unit"], cell["bert-base-uncased"]) == ("B", "")
    data = json.loads(json.dumps(found.to_json()))
    assert data["options"]["lengths"] == list(LENGTHS)
    assert data["options"]["batch_size"] == 2
    assert [row["values"] for row in data["rows"]] == [list(row.values) for row in found.rows]


def test_specs_graphs_and_names_may_be_mixed_and_equal_names_are_numbered():
    spec = load_spec("tiny-llama")
    found = compare([spec, expand(spec), "tiny-llama"], overrides=(), at=[77, 77])
    assert found.models == ["tiny-llama", "tiny-llama (2)", "tiny-llama (3)"]
    assert all(len(set(row.values)) == 1 for row in found.rows)
    assert found.lengths == (77,)
    assert compare("gpt2").lengths == (1024,)


def test_overrides_hold_for_every_file():
    found = compare(["tiny-llama", "tiny-deepseek-v3"], overrides=["dtype=float32"], at=5)
    for column, name in enumerate(("tiny-llama", "tiny-deepseek-v3")):
        one = estimate(load_spec(name, ["dtype=float32"]), max_model_len=5)
        assert found.row("weight_bytes").values[column] == one.weights.bytes
    with pytest.raises(ArchcError, match="only a file or a shipped name"):
        compare([load_spec("tiny-llama")], overrides=["dtype=float32"])


def test_bad_input_is_told_for_all_models_at_once():
    with pytest.raises(SpecError) as caught:
        compare(["gpt3", "gpt2", "kimi-lineer-48b-a3b"])
    assert [problem.file for problem in caught.value.problems] == ["gpt3", "kimi-lineer-48b-a3b"]
    assert "Did you mean kimi-linear-48b-a3b?" in str(caught.value)
    with pytest.raises(ArchcError, match="no spec"):
        compare([])
    with pytest.raises(ArchcError, match="at least 1 token"):
        compare(["gpt2"], at=[4096, 0])
    with pytest.raises(ArchcError, match="unknown"):
        compare(["gpt2"], dtype="float7")


def test_a_length_of_1e15_tokens_is_no_overflow():
    found = compare(["kimi-linear-48b-a3b"], at=10**15)
    assert found.row("cache_bytes", 10**15).values[0] == 43_417_600 + 8_064 * 10**15
    assert isinstance(found.row("prefill_flops", 10**15).values[0], int)


def test_times_are_those_of_estimate_time_in_passes_of_the_batch():
    found = compare(SPECS, at=[4096], batch_size=2, gpu="h200", gpus=2, compute_efficiency=0.5)
    for column, name in enumerate(SPECS):
        timing = estimate_time(
            name, gpu="h200", gpus=2, max_model_len=4096, batch_size=2, compute_efficiency=0.5, micro_batches=1
        )
        for step in ("forward", "prefill", "decode", "train_step"):
            expected = timing.steps[step].seconds if step in timing.steps else None
            assert found.row(f"{step}_s", 4096).values[column] == expected
    assert found.to_json()["options"]["gpu"] == "h200"
    # A faster memory makes a token faster.
    slower = compare(["llama-3-8b"], at=4096, gpu="a100-80gb").row("decode_s", 4096).values[0]
    assert compare(["llama-3-8b"], at=4096, gpu="h200").row("decode_s", 4096).values[0] < slower
    with pytest.raises(ArchcError, match="nothing is said of time without a gpu"):
        compare(["gpt2"], gpus=8)
    with pytest.raises(ArchcError, match="Did you mean h200"):
        compare(["gpt2"], gpu="h20")
