"""Memory of serving: sums that agree with the estimate and with real tensors, the largest that fits, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import archc
from archc.cli.main import archc as command
from archc.errors import SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.planning.fitting import NO_LIMIT, largest_that_fits
from archc.planning.parallel import Parallel
from archc.planning.serving.estimate import estimate_serving
from archc.spec.load import load_spec, shipped_specs

GIB = 1 << 30


@pytest.mark.parametrize("name", shipped_specs())
def test_one_rank_has_the_weights_and_the_cache_of_the_estimate(name: str):
    graph = expand(load_spec(name))
    plain = estimate(graph, batch_size=3, max_model_len=1000)
    (stage,) = estimate_serving(graph, batch_size=3, max_model_len=1000).stages
    assert stage.weight_bytes == plain.weights.bytes
    assert stage.used_bytes == plain.cache.used_bytes
    assert stage.allocated_bytes == plain.cache.allocated_bytes
    assert stage.paged_bytes >= stage.used_bytes


@pytest.mark.parametrize("name", ["llama-3-8b", "kimi-linear-48b-a3b", "deepseek-v3", "gemma-3-4b", "jamba-v0.1"])
@pytest.mark.parametrize("ranks", [{"pp": 2}, {"tp": 2}, {"tp": 2, "pp": 2, "dp": 2}, {"tp": 4, "ep": 4}])
def test_ranks_together_hold_all_of_it_and_more_only_where_that_is_said(name: str, ranks: dict[str, int]):
    whole = estimate_serving(name, batch_size=8, max_model_len=4096)
    cut = estimate_serving(name, batch_size=8, max_model_len=4096, parallel=Parallel(**ranks))
    assert cut.parallel.ranks * cut.stages[0].overhead_bytes == cut.total("overhead_bytes")
    for quantity in ("weight_bytes", "used_bytes", "allocated_bytes"):
        assert cut.total(quantity) >= whole.total(quantity)
    if set(ranks) == {"pp"}:
        assert cut.total("used_bytes") == whole.total("used_bytes")
        tied = "kimi" not in name and "gemma" in name
        assert (cut.total("weight_bytes") == whole.total("weight_bytes")) is not tied
    if "dp" not in ranks and "tp" in ranks:
        says_more = any("each piece on" in held for kind in cut.kinds for held in kind.held)
        assert (cut.total("used_bytes") > whole.total("used_bytes")) is says_more


def test_a_cache_is_as_large_as_real_tensors_are():
    torch = pytest.importorskip("torch")
    for name in ("tiny-llama", "tiny-kimi-linear", "tiny-gpt-oss", "tiny-deepseek-v3"):
        model = archc.build(load_spec(name), device="cpu")
        cache = archc.new_cache(model, batch=2, max_model_len=100, device="cpu")
        held = sum(tensor.numel() * tensor.element_size() for tensor in cache.values())
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        assert estimate_serving(name, batch_size=2, max_model_len=100, dtype=dtype).stages[0].allocated_bytes == held
    assert torch.float32.itemsize == 4


def test_the_workspace_holds_the_widest_values_of_a_layer_and_the_logits():
    found = estimate_serving("llama-3-8b", batch_size=4, max_model_len=8192, prefill_tokens=2048)
    workspace = found.stages[0].workspace
    assert workspace is not None
    # While gate and up meet: three tensors of 14,336 channels, the residual, and float32 tables of 64 angles for all layers.
    assert workspace.activation_bytes == 2048 * (2 * (3 * 14_336 + 4096) + 2 * 64 * 4)
    assert workspace.logits_bytes == 4 * 128_256 * (2 + 4)
    half = estimate_serving("llama-3-8b", max_model_len=8192, prefill_tokens=2048, parallel=Parallel(tp=2)).stages[0]
    assert half.workspace is not None
    assert half.workspace.activation_bytes == 2048 * (2 * (3 * 14_336 // 2 + 4096) + 2 * 64 * 4)


def test_routed_experts_keep_a_row_a_token_and_expert():
    found = estimate_serving("mixtral-8x7b", max_model_len=4096, prefill_tokens=1024).stages[0].workspace
    assert found is not None
    inside = 1024 * 2 * (14_336 + 14_336 + 4096) * 2
    assert inside < found.activation_bytes < inside * 1.2


def test_a_stated_workspace_and_overhead_replace_what_is_assumed():
    found = estimate_serving("llama-3-8b", max_model_len=8192, workspace_bytes=5, overhead_bytes=7)
    (stage,) = found.stages
    assert (stage.workspace, stage.workspace_bytes, stage.overhead_bytes) == (None, 5, 7)
    assert stage.total_bytes == stage.weight_bytes + stage.paged_bytes + 12


@pytest.mark.parametrize("name", ["llama-3-8b", "kimi-linear-48b-a3b", "gpt-oss-20b", "deepseek-v3.2"])
@pytest.mark.parametrize("runtime", ["paged", "tensors", "ideal"])
def test_what_fits_is_the_most_that_fits(name: str, runtime: str):
    def fit(batch: int, length: int):
        return estimate_serving(name, batch_size=batch, max_model_len=length, gpu="h200", gpus=16).fits[runtime]

    length = 100_000
    most = fit(1, length).max_batch
    assert most
    # A batch fits where its own longest length is at least the one that was asked for.
    longest = fit(most, length).max_length_tokens
    too_long = fit(most + 1, length).max_length_tokens
    assert longest is not None
    assert too_long is not None
    assert too_long < length <= longest
    assert fit(most, longest).max_batch == most
    assert (fit(1, longest + 1).max_batch or 0) < most


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 1000, 10**15, NO_LIMIT - 1])
def test_a_search_finds_the_last_number_that_fits(limit: int):
    assert largest_that_fits(lambda number: number <= limit) == limit


def test_what_never_ends_to_fit_has_no_limit():
    assert largest_that_fits(lambda number: True) is None
    found = estimate_serving("mamba2-2.7b", gpu="h200", gpus=1)
    assert found.fits["paged"].max_length_tokens is None
    assert found.fits["paged"].max_batch


def test_a_quadrillion_tokens_overflow_nothing():
    found = estimate_serving("kimi-linear-48b-a3b", batch_size=10**6, max_model_len=10**15, gpu="h200", gpus=8)
    assert found.fits["paged"].max_batch == 0
    assert found.stages[0].used_bytes == 10**6 * (8064 * 10**15 + 43_417_600 // 8)
    assert found.fits["paged"].limit == "the cache"
    assert json.loads(json.dumps(found.to_json()))["per_rank"][0]["cache_used_bytes"] == found.stages[0].used_bytes


def test_weights_that_don_t_fit_are_named_as_what_limits():
    found = estimate_serving("deepseek-v3", gpu="rtx-4090", gpus=8)
    assert found.fits["paged"].max_batch == 0
    assert found.fits["paged"].limit == "the weights alone are more than the memory"
    assert any("not one sequence" in line for line in found.warnings)


def test_devices_are_shared_by_tp_as_far_as_heads_go_and_then_by_pp():
    assert estimate_serving("llama-3-8b", gpus=8).parallel == Parallel(tp=8)
    assert estimate_serving("llama-3-8b", gpus=64).parallel == Parallel(tp=32, pp=2)
    assert estimate_serving("llama-3-8b").parallel == Parallel()


def test_copies_share_the_batch():
    found = estimate_serving("llama-3-8b", batch_size=9, max_model_len=4096, parallel=Parallel(dp=4), gpu="h200")
    alone = estimate_serving("llama-3-8b", batch_size=3, max_model_len=4096, gpu="h200")
    assert found.stages[0].used_bytes == alone.stages[0].used_bytes
    one = alone.fits["paged"].max_batch
    assert one is not None
    assert found.fits["paged"].max_batch == 4 * one


def test_every_reason_against_a_request_is_given_at_once():
    with pytest.raises(SpecError) as raised:
        estimate_serving(
            "llama-3-8b",
            batch_size=0,
            gpu="h20",
            gpus=7,
            parallel=Parallel(tp=5),
            dtype="bfloat17",
            prefix_tokens=10,
            source_len=3,
        )
    text = "\n".join(problem.message for problem in raised.value.problems)
    for part in (
        "Did you mean h200",
        "batch_size should be at least 1 (found 0)",
        "32 heads of attn (layers.0 and 31 others) can't be cut into 5 (tp)",
        "tp 5 takes 5 devices",
        "5 devices can be used as pp 5",
        "dtype 'bfloat17' is unknown",
        "prefix_tokens are shared under prefix_caching only",
        "has no encoder",
    ):
        assert part in text, text


def test_more_tokens_than_the_model_is_made_for_are_said():
    found = estimate_serving("llama-2-7b", max_model_len=8192, gpu="h200")
    assert found.warnings == ["8,192 tokens are more than the model is made for, 4,096"]


def test_an_encoder_and_its_decoder_keep_rows_of_the_source():
    found = estimate_serving("t5-base", batch_size=2, max_model_len=100, source_len=300, dtype="f32")
    (stage,) = found.stages
    plain = estimate("t5-base", batch_size=2, max_model_len=100, source_len=300, dtype="f32")
    assert stage.used_bytes == plain.cache.used_bytes
    source = next(kind for kind in found.kinds if kind.source_token_bytes)
    assert source.source_token_bytes == 12 * 2 * 12 * 64 * 4
    assert {group.type for group in found.pages.groups} == {"full", "source"}


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, ["estimate", *args])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_what_fits_and_the_same_numbers_as_json(tmp_path: Path):
    args = ("kimi-linear-48b-a3b", "--serve", "--gpu", "h200", "--gpus", "8", "--max-model-len", "128k")
    code, text, _ = run(*args)
    assert code == 0
    for part in (
        "8 NVIDIA H200",
        "sequences of 131,072 tokens",
        "latent: each piece on 8 ranks (all heads read it)",
        "8,064",
    ):
        assert part in text
    code, data, _ = run(*args, "--json")
    serving = json.loads(data)["serving"]
    assert code == 0
    assert serving["fits"]["paged"]["max_batch"] == 114
    assert f"{serving['fits']['paged']['max_length_tokens']:,}" in text
    assert serving["parallel"] == {"tp": 8, "pp": 1, "ep": 1, "dp": 1, "cp": 1}
    assert json.loads(data)["parameters"]["total"] > 0


def test_tp_takes_the_devices_that_other_ranks_leave():
    def split(*args: str) -> dict[str, int]:
        return json.loads(run("deepseek-v3", "--serve", "--json", *args)[1])["serving"]["parallel"]

    assert split("--gpus", "8", "--ep", "4") == {"tp": 8, "pp": 1, "ep": 4, "dp": 1, "cp": 1}
    assert split("--gpus", "16", "--pp", "2") == {"tp": 8, "pp": 2, "ep": 1, "dp": 1, "cp": 1}
    code, _, errors = run("deepseek-v3", "--serve", "--gpus", "15", "--pp", "2")
    assert code == 2
    assert "pp 2 takes 2 devices (tp 1 x pp 2 x dp 1 x cp 1), and gpus says 15" in errors
    held = json.loads(run("deepseek-v3", "--serve", "--json", "--tp", "8", "--ep", "4")[1])["serving"]["replicated"]
    assert held["on 2 ranks: experts go to 4 of 8 ranks"][0] == "moe: ffn.experts.gate_proj"
    # Four copies of the model share these experts, each of them has a piece once.
    assert (
        len(json.loads(run("deepseek-v3", "--serve", "--json", "--dp", "4", "--ep", "4")[1])["serving"]["replicated"])
        == 0
    )


@pytest.mark.parametrize(
    "args",
    [
        ("deepseek-v4-flash", "--tp", "8", "--ep", "8", "--max-model-len", "1e15", "--batch-size", "1000000000000"),
        ("roberta-base", "--gpu", "cpu", "--batch-size", "2", "--max-model-len", "128k"),
        ("t5-base", "--tp", "3", "--kv-cache-dtype", "int4", "--source-len", "1", "--max-model-len", "1"),
        ("vit-base-patch16-224", "--gpu", "rtx4090", "--pp", "12"),
        ("nsa-demo", "--cp", "3", "--prefix-caching", "--shared-prefix", "8k", "--block-size", "7", "--gpu", "mi300x"),
        ("jamba-v0.1", "--pp", "3", "--mamba-block-size", "7", "--prefix-caching", "--gpu", "b200", "--dtype", "fp8"),
        ("kimi-k3", "--tp", "8", "--dp", "3", "--ep", "4", "--gpu", "h100", "--workspace", "0", "--overhead", "0"),
    ],
)
def test_what_is_odd_is_printed_within_the_width_of_a_page(args: tuple[str, ...]):
    code, text, errors = run(*args, "--serve")
    assert code in (0, 2), errors
    assert "Traceback" not in errors
    assert max(map(len, text.splitlines()), default=0) <= 118
    assert (code == 0) is not bool(errors)


def test_bad_options_end_in_2_with_every_reason():
    code, _, errors = run("llama-3-8b", "--serve", "--gpu", "h2o0", "--tp", "5")
    assert code == 2
    assert "Did you mean h200" in errors
    assert "can't be cut into 5" in errors
    code, _, errors = run("llama-3-8b", "--tp", "2", "--workspace", "2GB")
    assert code == 2
    assert "--tp belongs to --serve" in errors
    assert "--workspace belongs to --serve" in errors
    code, data, _ = run("llama-3-8b", "--serve", "--tp", "5", "--json")
    assert code == 2
    assert len(json.loads(data)["problems"]) == 4
    assert run("llama-3-8b", "--serve", "--workspace", "2G")[0] == 2
    assert run("llama-3-8b", "--serve", "--gpu-memory-utilization", "1.5")[0] == 2
    assert run("llama-3-8b", "--serve", "--explain", "cache.used_bytes")[0] == 2


def test_where_nothing_is_kept_the_whole_batch_is_read_at_once():
    (bert,) = estimate_serving("bert-base-uncased", batch_size=32, max_model_len=512).stages
    assert bert.workspace is not None
    # The residual, the channels before and behind gelu, and the padding mask in int64.
    assert bert.workspace.activation_bytes == 32 * 512 * (2 * (768 + 2 * 3072) + 8)
    assert (bert.workspace.tokens, bert.workspace.rows) == (32 * 512, 0)
    (vit,) = estimate_serving("vit-base-patch16-224", batch_size=16).stages
    assert vit.workspace is not None
    assert vit.workspace.activation_bytes == 16 * 197 * 2 * (768 + 2 * 3072)
    assert vit.workspace.logits_bytes == 16 * 1000 * 2
    (masked,) = estimate_serving("modernbert-base", batch_size=3, max_model_len=100).stages
    assert masked.workspace is not None
    assert masked.workspace.logits_bytes == 3 * 100 * 50_368 * 2
    assert estimate_serving("bert-base-uncased", gpu="l40s", max_model_len=512).fits["paged"].limit == "the workspace"


def test_texts_of_an_encoder_are_read_whole_and_their_scores_are_kept_for_all_layers():
    def activations(batch: int) -> int:
        (stage,) = estimate_serving("t5-base", batch_size=batch, max_model_len=1, source_len=4096).stages
        assert stage.workspace is not None
        return stage.workspace.activation_bytes

    # 8,192 tokens are two texts, and what is added to scores has the padding of each in it: (texts, 12, 4096, 4096). A third
    # one waits: of it the decoder has an id and a position.
    def least(texts: int) -> int:
        return texts * (12 * 4096 * 4096 * 2 + 4096 * 2 * (768 + 2 * 3072))

    assert least(1) <= activations(1) < least(1) * 1.01
    assert least(2) <= activations(2) == activations(3) - 2 * 8 < least(2) * 1.01


def test_a_step_reads_a_token_of_every_sequence_at_least():
    found = estimate_serving("llama-3-8b", batch_size=1000, max_model_len=100, prefill_tokens=10).stages[0].workspace
    assert found is not None
    assert found.tokens == 1000
    assert found.activation_bytes == 1000 * (2 * (3 * 14_336 + 4096) + 2 * 64 * 4)
