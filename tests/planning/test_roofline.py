"""The roofline: work counted by hand and against the estimate, what bounds it, and what published times come to."""

from __future__ import annotations

import math
import random

import pytest

from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.planning.hardware import devices, find_device
from archc.planning.parallel import Parallel
from archc.planning.timing.estimate import Timing, estimate_time
from archc.planning.timing.roofline import Roof, Row
from archc.planning.timing.stepping import OPTIMIZER_BYTES_PER_PARAMETER, StepTime
from archc.planning.timing.work import Work, expected_share
from archc.spec.load import load_spec, shipped_specs

AT_PEAK = {"compute_efficiency": 1.0, "memory_efficiency": 1.0, "link_efficiency": 1.0}
MILLION = 1 << 20


def shipped(name: str, *overrides: str) -> Graph:
    return expand(load_spec(name, overrides))


def step(found: Timing, name: str) -> StepTime:
    return found.steps[name]


def part(found: Timing, name: str, row: str) -> Row:
    return next(one for one in step(found, name).by_part if one.name == row)


def test_an_op_takes_the_longer_of_its_flops_and_its_bytes():
    device = find_device("h100")
    roof = Roof(device, "bfloat16", 989_400_000_000_000, 0.5, 0.25)
    assert roof.ridge_flops_per_byte == pytest.approx(989.4 * 0.5 / (3.35 * 0.25))
    row = Row("both")
    row.add(Work(flops=989_400_000_000, weight_bytes=1), roof)
    assert (row.seconds, row.bound, row.bound_share) == (pytest.approx(0.002), "compute", 1.0)
    row.add(Work(flops=1, weight_bytes=3_350_000_000, state_bytes=3_350_000_000), roof)
    assert row.seconds == pytest.approx(0.002 + 0.008)
    assert (row.bound, row.bound_share) == ("memory", pytest.approx(0.8))
    assert row.work.flops_per_byte == pytest.approx(989_400_000_001 / 6_700_000_001)


def test_a_decode_step_of_llama_reads_every_product_s_weights_once_and_the_cache():
    length = 8192
    found = estimate_time("llama-3-8b", gpu="h100", max_model_len=length, **AT_PEAK)
    whole = step(found, "decode").whole
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    weights = 32 * (attention + 3 * 4096 * 14336) + 128_256 * 4096
    assert whole.work.weight_bytes == 2 * weights
    assert (
        whole.work.state_bytes
        == 32 * 2 * 8 * 128 * length * 2
        == estimate("llama-3-8b", max_model_len=length).cache.used_bytes
    )
    # Vectors only: of every product its input and output, of attention its query, new key and value, and output.
    a_layer = (4096 + 4096) + 2 * (4096 + 1024) + (2 * 4096 + 2 * 1024) + 8192 + 2 * (4096 + 14336) + (14336 + 4096)
    assert whole.work.activation_bytes == 2 * (32 * a_layer + 4096 + 128_256)
    assert step(found, "decode").seconds == pytest.approx(whole.work.bytes / 3.35e12)
    assert (whole.bound, whole.bound_share) == ("memory", 1.0)


@pytest.mark.parametrize("name", shipped_specs())
def test_flops_on_one_rank_are_the_estimate_s_for_every_shipped_spec(name: str):
    graph = shipped(name)
    length = min(graph.max_position_embeddings or 512, 512)
    counted = estimate(graph, max_model_len=length, batch_size=2).flops.numbers
    found = estimate_time(graph, gpu="a100", max_model_len=length, batch_size=2)
    dense = estimate_time(graph, gpu="a100", max_model_len=length, batch_size=2, pairs="dense")
    for name_of_step, one in found.steps.items():
        assert one.whole.work.flops == one.flops == counted[name_of_step]
        assert dense.steps[name_of_step].flops == counted[f"{name_of_step}_dense"]
        assert 0 < one.seconds < math.inf
        assert one.work_s == pytest.approx(sum(row.seconds for row in one.by_layer))
        assert one.work_s == pytest.approx(sum(row.seconds for row in one.by_part))
        assert not one.communication_s
        assert 0 < one.flops_utilization < 0.7 + 1e-9


@pytest.mark.parametrize("gpu", devices())
def test_every_device_gives_times_and_a_faster_one_shorter_ones(gpu: str):
    found = estimate_time("tiny-kimi-linear", gpu=gpu, max_model_len=1024, tokens=10**9)
    best = estimate_time("tiny-kimi-linear", gpu=gpu, max_model_len=1024, **AT_PEAK)
    for name, one in found.steps.items():
        assert one.seconds > best.steps[name].seconds > 0
    energy = found.budget.energy_kwh
    assert (energy is None) == (find_device(gpu).power_w is None)


def test_a_prefill_of_a_large_model_is_bound_by_compute_and_a_decode_step_by_memory():
    found = estimate_time("llama-3-8b", gpu="h100", max_model_len=8192)
    assert step(found, "prefill").whole.bound == "compute"
    assert step(found, "prefill").flops_utilization == pytest.approx(0.7, rel=0.01)
    assert step(found, "decode").whole.bound == "memory"
    # With 1,024 sequences the feed-forwards' weights are read once for all of them; each attends to a cache of its own.
    many = estimate_time("llama-3-8b", gpu="h100", max_model_len=8192, batch_size=1024)
    assert part(many, "decode", "ffn.mlp").bound == "compute"
    assert part(many, "decode", "mixer.attn").bound == "memory"


def test_the_experts_that_some_token_chooses_are_those_that_chance_finds():
    assert expected_share(8 / 256, 1) == pytest.approx(8 / 256)
    assert expected_share(1.0, 5) == 1.0
    assert expected_share(8 / 256, 10**15) == 1.0
    assert expected_share(2 / 4, 2) == pytest.approx(3 / 4)
    random.seed(0)
    for tokens in (4, 32, 100):
        seen = [len({e for _ in range(tokens) for e in random.sample(range(256), 8)}) for _ in range(300)]
        assert expected_share(8 / 256, tokens) * 256 == pytest.approx(sum(seen) / 300, rel=0.01)


def test_a_decode_step_of_one_token_reads_its_own_experts_only():
    found = estimate_time("kimi-linear-48b-a3b", gpu="h200", max_model_len=4096)
    one_expert = 3 * 1024 * 2304
    dense = 26 * (one_expert + 256 * 2304 + 256)
    weights = part(found, "decode", "ffn.moe").work.weight_bytes
    # Eight of 256 routed ones, the shared one and the router, whose correction biases are float32.
    assert weights == pytest.approx(2 * (26 * 8 * one_expert + dense), rel=1e-4)


def test_a_recurrent_state_is_read_and_written_and_a_cache_read():
    found = estimate_time("kimi-linear-48b-a3b", gpu="h200", max_model_len=MILLION)
    assert part(found, "decode", "mixer.mla").work.state_bytes == 8_064 * MILLION
    assert part(found, "decode", "mixer.kda").work.state_bytes == 2 * (41_943_040 + 1_474_560)
    assert part(found, "prefill", "mixer.kda").work.state_bytes == 41_943_040 + 1_474_560


def test_a_cache_in_eight_bits_is_read_in_half_the_time():
    usual = estimate_time("llama-3-8b", gpu="h100", max_model_len=131_072)
    narrow = estimate_time("llama-3-8b", gpu="h100", max_model_len=131_072, kv_cache_dtype="fp8")
    states = [part(one, "decode", "mixer.attn").work.state_bytes for one in (usual, narrow)]
    assert states[0] == 2 * states[1]


def test_layers_that_read_another_one_s_cache_read_it_in_its_dtype():
    # Its cache is in eight bits as the spec has it.
    wide, narrow = (
        estimate_time("demo-yoco", gpu="h100", max_model_len=131_072, kv_cache_dtype=dtype) for dtype in ("bf16", None)
    )
    # One layer keeps it and reads it, as do the twelve behind.
    cache = 2 * 4 * 128 * 131_072
    assert part(narrow, "decode", "mixer.global").work.state_bytes == cache
    assert part(narrow, "decode", "mixer.reuse").work.state_bytes == 12 * cache
    assert part(wide, "decode", "mixer.reuse").work.state_bytes == 12 * cache * 2


def test_a_training_step_moves_the_optimizer_s_bytes_and_full_recomputation_a_third_more():
    plain = estimate_time("llama-3-8b", gpu="h100", max_model_len=8192)
    parameters = estimate("llama-3-8b").parameters.total
    train = step(plain, "train_step")
    assert train.optimizer_s == pytest.approx(parameters * OPTIMIZER_BYTES_PER_PARAMETER / (3.35e12 * 0.8))
    assert train.seconds == pytest.approx(train.work_s + train.optimizer_s)
    again = step(estimate_time("llama-3-8b", gpu="h100", max_model_len=8192, recompute="full"), "train_step")
    rows = {row.name: row for row in train.by_part}
    for row in again.by_part:
        factor = 1 if row.name == "head" else 4 / 3
        assert row.work.flops * 3 == pytest.approx(rows[row.name].work.flops * 3 * factor)
    assert again.flops == train.flops


def test_a_budget_takes_hours_and_energy_of_all_devices():
    found = estimate_time(
        "deepseek-v3", gpu="h800", gpus=2048, mfu=0.3909, max_model_len=4096, tokens=14_800_000_000_000
    )
    budget = found.budget
    # 2.664 M H800 hours (arXiv 2412.19437, table 1).
    assert budget.gpu_hours == pytest.approx(2_664_000, rel=0.001)
    assert budget.model_flops_utilization == pytest.approx(0.3909)
    assert budget.energy_kwh == pytest.approx(budget.gpu_hours * 0.7)
    assert budget.seconds is not None
    assert budget.seconds == pytest.approx(budget.gpu_hours * 3600 / 2048)
    assert step(found, "train_step").tokens_per_s == budget.tokens_per_s


def test_a_budget_of_llama_3_405b_at_its_published_mfu():
    # 3.8e25 FLOPs at 38 to 43% of 989 TFLOP/s (arXiv 2407.21783): 24 to 28 M H100 hours; Meta's model card says 30.84 M.
    hours = [
        estimate_time(
            "llama-3.1-405b", gpu="h100", mfu=mfu, max_model_len=8192, tokens=15_600_000_000_000, flops_convention="6nd"
        ).budget
        for mfu in (0.43, 0.38)
    ]
    assert [round((one.gpu_hours or 0) / 1e6, 1) for one in hours] == [24.8, 28.1]
    assert hours[0].total_flops == pytest.approx(3.8e25, rel=0.0005)


def kimi_decode_ms(mixer: str, *, batch_size: int = 1, parallel: Parallel | None = None) -> float:
    graph = shipped("kimi-linear-48b-a3b", f"stack.mixer={mixer}")
    sizes = {"batch_size": batch_size, "max_model_len": MILLION, "parallel": parallel}
    return step(estimate_time(graph, gpu="h800", **sizes, **AT_PEAK), "decode").seconds * 1e3


HYBRID, ALL_MLA = "(kda*3 mla)* kda*2 mla", "mla*27"


def test_the_all_mla_twin_takes_its_published_time_at_a_million_tokens():
    # Kimi Linear, figure 1: 11.48 ms for MLA. One sequence on one H800 at its full bandwidth.
    assert kimi_decode_ms(ALL_MLA) == pytest.approx(11.48, rel=0.002)


def test_kimi_linear_s_published_ratio_is_more_than_a_roofline_of_equal_batches_can_give():
    # Figure 1: 11.48 / 1.84 ms = 6.24, "6.3x". docs/time.md tells which assumption differs.
    ratio = kimi_decode_ms(ALL_MLA) / kimi_decode_ms(HYBRID)
    assert kimi_decode_ms(HYBRID) == pytest.approx(4.406, abs=0.001)
    assert ratio == pytest.approx(2.602, abs=0.001)
    large = kimi_decode_ms(ALL_MLA, batch_size=256) / kimi_decode_ms(HYBRID, batch_size=256)
    assert ratio < large < 27 / 7 < 11.48 / 1.84
    # The cache of one sequence alone takes longer to read than the published 1.84 ms.
    cache_ms = 8_064 * MILLION / 3.35e12 * 1e3
    assert cache_ms == pytest.approx(2.524, abs=0.001)


def test_kimi_linear_s_ratio_at_batch_1_is_near_its_published_one():
    # Figure 7b shows 2.2 at 1 M, its text says 2.3; a roofline leaves launches and waiting out.
    assert kimi_decode_ms(ALL_MLA) / kimi_decode_ms(HYBRID) == pytest.approx(2.3, rel=0.15)


def test_times_of_1e15_tokens_are_finite_and_their_flops_exact():
    length = 10**15
    for name in ("kimi-linear-48b-a3b", "deepseek-v3.2", "gpt-oss-20b"):
        found = estimate_time(name, gpu="h200", max_model_len=length, batch_size=1 << 40, tokens=10**18)
        counted = estimate(name, max_model_len=length, batch_size=1 << 40).flops.numbers
        for one in found.steps.values():
            assert one.flops == counted[one.name]
            assert isinstance(one.whole.work.bytes, int)
            assert math.isfinite(one.seconds)
        assert found.budget.gpu_hours is not None
        assert math.isfinite(found.budget.gpu_hours)


def test_a_picture_has_its_patches_whatever_length_is_asked_for():
    plain = estimate_time("vit-base-patch16-224", gpu="h100", batch_size=64)
    asked = estimate_time("vit-base-patch16-224", gpu="h100", batch_size=64, max_model_len=7)
    # 197 rows of 768 channels: 12 (4 d^2 + 8 d^2) products of weights, 4 T d of attention, patches and 1,000 classes.
    width, rows = 768, 197
    layers = 12 * (2 * 12 * width * width + 4 * rows * width) * rows
    whole = layers + 2 * 196 * width * width + 2 * width * 1000
    assert plain.budget.model.training == 3 * whole
    assert plain.steps["forward"].tokens_per_s == asked.steps["forward"].tokens_per_s
    assert asked.budget.model.per_token == plain.budget.model.per_token == 3 * whole / rows
    assert asked.budget.model_flops_utilization == plain.budget.model_flops_utilization < 0.7
    assert asked.notes == ["a sequence of vit-base-patch16-224 has 197 tokens, whatever the length"]


def test_what_a_time_leaves_out_or_stretches_is_noted():
    assert estimate_time("gpt2", gpu="h100", max_model_len=2048).notes == [
        "2,048 tokens are more than the model is made for, 1,024"
    ]
    notes = estimate_time("deepseek-v3", gpu="h100", max_model_len=4096).notes
    assert "extra prediction layers (mtp) are left out, in training, too" in notes
