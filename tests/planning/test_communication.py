"""What ranks send each other, counted by hand, and how work is shared out over them."""

from __future__ import annotations

import pytest

from archc.errors import ArchcError, SpecError
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.planning.parallel import Parallel
from archc.planning.timing.estimate import STEP_TOKENS, estimate_time
from archc.planning.timing.stepping import StepTime
from archc.spec.load import load_spec

AT_PEAK = {"compute_efficiency": 1.0, "memory_efficiency": 1.0, "link_efficiency": 1.0}
NVLINK, NETWORK = 450e9, 50e9


def shipped(name: str, *overrides: str) -> Graph:
    return expand(load_spec(name, overrides))


def steps(name: str, parallel: Parallel, **options: object) -> dict[str, StepTime]:
    return estimate_time(name, gpu="h100", parallel=parallel, **{**AT_PEAK, **options}).steps


def test_tensor_parallelism_adds_up_behind_each_row_cut_product_and_the_table():
    length, width = 8192, 4096
    found = steps("llama-3-8b", Parallel(tp=8), max_model_len=length)["prefill"]
    # Two a layer (o_proj and down_proj, Megatron-LM) and the cut table of the vocabulary.
    one = length * width * 2 * 2 * 7 / 8 / NVLINK
    assert found.communication_s["all_reduce"] == pytest.approx((2 * 32 + 1) * one)
    # The logits of the last token, in float32.
    assert found.communication_s["all_gather"] == pytest.approx(128_256 * 4 * 7 / 8 / NVLINK)
    assert found.seconds == pytest.approx(found.work_s + sum(found.communication_s.values()))
    train = steps("llama-3-8b", Parallel(tp=8), max_model_len=length, micro_batches=1)["train_step"]
    assert train.communication_s["all_reduce"] == pytest.approx(2 * (2 * 32 + 1) * one)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_cuts_all_of_a_dense_model_s_work(tp: int):
    alone = steps("llama-3-8b", Parallel(), max_model_len=4096)
    cut = steps("llama-3-8b", Parallel(tp=tp), max_model_len=4096)
    for name in ("prefill", "decode"):
        assert cut[name].whole.work.flops * tp == alone[name].whole.work.flops == cut[name].flops
        assert cut[name].whole.work.weight_bytes * tp == alone[name].whole.work.weight_bytes
        assert cut[name].whole.work.state_bytes * tp == alone[name].whole.work.state_bytes


def test_tensor_parallelism_leaves_latents_and_their_cache_on_every_rank():
    def latent(parallel: Parallel) -> int:
        found = steps("deepseek-v3", parallel, max_model_len=131_072)["decode"]
        return next(row for row in found.by_part if row.name == "mixer.mla").work.state_bytes

    assert latent(Parallel(tp=8)) == latent(Parallel()) == 70_272 * 131_072


def reductions(name: str, tp: int) -> float:
    """Sums over tp in one decode step of one sequence, of the model's width."""
    found = steps(name, Parallel(tp=tp), max_model_len=1024)["decode"]
    width = shipped(name).root.calls
    one = next(width()).outputs[0].width * 2 * 2 * (tp - 1) // tp / NVLINK
    return found.communication_s["all_reduce"] / one


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        # The table of the vocabulary, then a layer's: attention and feed-forward one after the other.
        ("llama-3-8b", 1 + 2 * 32),
        # Shared and routed experts are added to each other before they are added up over ranks.
        ("deepseek-v3", 1 + 2 * 61),
        ("kimi-linear-48b-a3b", 1 + 2 * 27),
        # Shared experts behind a gate, whose parts it multiplies alike.
        ("qwen3-next-80b-a3b", 1 + 2 * 48),
        # Attention and feed-forward beside each other (GPT-J's block).
        ("gpt-neox-20b", 1 + 44),
        ("command-r7b", 1 + 32),
    ],
)
def test_parts_that_meet_are_added_up_over_ranks_once(name: str, sums: int):
    assert reductions(name, 2) == pytest.approx(sums)


def test_experts_are_reached_all_to_all_and_read_by_the_rank_that_has_them():
    batch, width, layers = 128, 7168, 58
    found = steps("deepseek-v3", Parallel(dp=16, ep=16), max_model_len=4096, batch_size=batch)["decode"]
    # Eight sequences a copy, to eight experts each, fifteen of sixteen elsewhere, there and back; 16 ranks are two nodes.
    sent = 2 * (batch // 16) * 8 * width * 2 * 15 / 16
    assert found.communication_s == {"all_to_all": pytest.approx(layers * sent / NETWORK, rel=1e-3)}
    row = next(row for row in found.by_part if row.name == "ffn.moe")
    one_expert = 3 * 2048 * 7168 * 2
    seen = 16 * (1 - (1 - 8 / 256) ** batch)
    shared_and_router = (3 * 2048 + 256) * 7168 * 2
    assert row.work.weight_bytes == pytest.approx(layers * (seen * one_expert + shared_and_router), rel=1e-4)


def test_gradients_are_added_up_once_a_step_over_the_network():
    found = steps("llama-3-8b", Parallel(dp=16), max_model_len=8192)["train_step"]
    assert found.communication_s == {"gradients": pytest.approx(8_030_261_248 * 2 * 2 * 15 / 16 / NETWORK)}
    assert found.tokens == STEP_TOKENS
    assert found.seconds == pytest.approx(found.work_s * 32 + found.optimizer_s + found.communication_s["gradients"])


def test_gradients_of_one_copy_are_nobody_else_s_whether_experts_are_cut_by_tp_or_shared_out():
    for parallel in (Parallel(tp=4), Parallel(tp=4, ep=4)):
        found = steps("gpt-oss-20b", parallel, max_model_len=1024)["train_step"]
        assert "gradients" not in found.communication_s
    # Experts that are shared out over all copies stand once; the rest, 1.8 B parameters, is added up over four.
    whole, shared = (
        steps("gpt-oss-20b", parallel, max_model_len=1024)["train_step"].communication_s["gradients"]
        for parallel in (Parallel(dp=4), Parallel(dp=4, ep=4))
    )
    experts = 24 * 32 * (3 * 2880 * 2880 + 3 * 2880)
    assert whole == pytest.approx(20_914_757_184 * 2 * 2 * 3 / 4 / NVLINK)
    assert shared == pytest.approx((20_914_757_184 - experts) * 2 * 2 * 3 / 4 / NVLINK)


def test_stages_hand_on_and_wait_for_each_other():
    found = steps("llama-3-8b", Parallel(pp=4), max_model_len=8192, micro_batches=8)
    one = 8192 * 4096 * 2 / NVLINK
    assert found["prefill"].communication_s == {"hand_on": pytest.approx(3 * one)}
    train = found["train_step"]
    slowest = train.bubble_s / 3
    assert train.seconds == pytest.approx((8 + 3) * slowest + train.optimizer_s)
    alone = steps("llama-3-8b", Parallel(), max_model_len=8192)
    assert found["prefill"].work_s == pytest.approx(alone["prefill"].work_s)
    # Stages work on batches of their own, so more is got through than one batch after the other.
    assert found["prefill"].tokens_per_s > 3 * found["prefill"].tokens / found["prefill"].seconds


def test_ranks_of_cp_share_tokens_and_send_keys_and_values_round():
    alone = steps("llama-3-8b", Parallel(), max_model_len=131_072)
    found = steps("llama-3-8b", Parallel(cp=4), max_model_len=131_072)
    assert found["prefill"].whole.work.flops * 4 == pytest.approx(alone["prefill"].whole.work.flops, rel=1e-6)
    assert found["decode"].whole.work.state_bytes * 4 == alone["decode"].whole.work.state_bytes
    rows = 131_072 * 2 * 8 * 128 * 2 * 32
    assert found["prefill"].communication_s == {"ring": pytest.approx(rows / 4 * 3 / NVLINK)}
    # Each rank has a part of the output of every layer, in float32.
    assert found["decode"].communication_s == {"combine": pytest.approx(32 * 4096 * 4 * 2 * 3 / 4 / NVLINK)}


def test_overlap_hides_communication_behind_work_and_no_more_than_there_is():
    parallel = Parallel(tp=8)
    usual, half, full = (
        steps("llama-3-8b", parallel, max_model_len=8192, overlap=overlap)["prefill"] for overlap in (0, 0.5, 1)
    )
    sent = sum(usual.communication_s.values())
    assert half.seconds == pytest.approx(usual.seconds - sent / 2)
    assert full.seconds == pytest.approx(max(usual.work_s, usual.seconds - usual.work_s))
    # A decode step on a slow link sends longer than it works.
    slow = estimate_time("llama-3-8b", gpu="4090", parallel=parallel, max_model_len=128, batch_size=4096, overlap=1)
    decode = slow.steps["decode"]
    waits = sum(decode.communication_s.values())
    assert decode.seconds == pytest.approx(waits + decode.work_s - min(waits, decode.work_s))


def test_devices_alone_share_heads_as_far_as_links_reach_and_copies_are_the_rest():
    found = estimate_time("llama-3-8b", gpu="h100", gpus=64, max_model_len=1024)
    assert found.parallel == Parallel(tp=8, dp=8)
    # Nine heads are no multiple of four ranks.
    assert estimate_time("smollm2-135m", gpu="h100", gpus=4, max_model_len=1024).parallel.tp < 4
    stated = estimate_time("llama-3-8b", gpu="h100", gpus=64, parallel=Parallel(tp=4), max_model_len=1024)
    assert stated.parallel == Parallel(tp=4, dp=16)
    with pytest.raises(ArchcError, match="6 gpus are not what tp 4 takes, 4"):
        estimate_time("llama-3-8b", gpu="h100", gpus=6, parallel=Parallel(tp=4), max_model_len=1024)


def test_sequences_are_shared_out_over_the_copies_at_least_one_each():
    found = estimate_time("llama-3-8b", gpu="h100", parallel=Parallel(dp=4), max_model_len=1024)
    assert (found.batch_size, found.steps["decode"].tokens) == (4, 4)
    alone = estimate_time("llama-3-8b", gpu="h100", max_model_len=1024)
    assert found.steps["decode"].tokens_per_s == pytest.approx(4 * alone.steps["decode"].tokens_per_s)


def test_weights_that_no_device_holds_are_noted():
    assert any("more than the 79.647 GiB" in note for note in estimate_time("llama-3-70b", gpu="h100").notes)
    assert not estimate_time("llama-3-70b", gpu="h100", gpus=8).notes
    notes = estimate_time("llama-3-8b", gpu="a100", dtype="fp8", max_model_len=1024).notes
    assert notes == ["a100-sxm-80gb has no peak of float8_e4m3fn: products are taken at that of bfloat16"]


def test_every_wrong_option_is_told_at_once():
    with pytest.raises(SpecError) as found:
        estimate_time(
            "llama-3-8b",
            gpu="h20",
            parallel=Parallel(tp=5),
            flops_convention="plam",
            batch_size=0,
            max_model_len=-1,
            source_len=4,
            dtype="bf17",
            compute_efficiency=1.1,
            mfu=0.0,
            overlap=2,
            recompute="some",
            tokens=0,
        )
    told = str(found.value)
    for text in (
        "batch_size should be at least 1 (found 0)",
        "max_model_len should be at least 1 (found -1)",
        "source_len: llama-3-8b has no encoder that a decoder reads",
        "dtype 'bf17' is unknown",
        "compute_efficiency should be above 0 and at most 1 (found 1.1)",
        "mfu should be above 0 and at most 1 (found 0)",
        "overlap should be at least 0 and at most 1 (found 2)",
        "recompute: 'some' is unknown; known: none, selective and full",
        "tokens should be at least 1 (found 0)",
        "device 'h20' is unknown. Did you mean h200-sxm?",
        "heads of attn (layers.0 and 31 others) can't be cut into 5 (tp)",
        "FLOP convention 'plam' is unknown. Did you mean palm?",
    ):
        assert text in told


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (Parallel(tp=5), "heads of attn .* can't be cut into 5"),
        (Parallel(tp=64), "can't be cut into 64"),
        (Parallel(pp=33), "32 layers can't be cut into 33 stages"),
        (Parallel(ep=3), "ep 3 doesn't divide"),
        (Parallel(tp=0), "tp should be at least 1"),
    ],
)
def test_impossible_ranks_are_refused_with_the_reason(parallel: Parallel, message: str):
    with pytest.raises(SpecError, match=message):
        estimate_time("llama-3-8b", gpu="h100", parallel=parallel, max_model_len=1024)


@pytest.mark.parametrize("name", ["kimi-linear-48b-a3b", "gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v3", "t5-base"])
@pytest.mark.parametrize("parallel", [Parallel(tp=2), Parallel(pp=3), Parallel(tp=2, pp=2, dp=2, ep=4), Parallel(cp=2)])
def test_every_kind_of_model_has_times_on_ranks(name: str, parallel: Parallel):
    found = estimate_time(shipped(name), gpu="h200", parallel=parallel, max_model_len=2048, source_len=None)
    alone = estimate_time(shipped(name), gpu="h200", max_model_len=2048)
    for step, one in found.steps.items():
        assert one.communication_s
        assert 0 < one.seconds < float("inf")
        each = one.flops / parallel.dp / (found.micro_batches if step == "train_step" else 1)
        assert each == alone.steps[step].flops


def test_one_rank_of_deepseek_v3_on_tp_8_and_ep_8_does_what_is_counted_by_hand():
    batch, length, width, layers, sparse = 256, 4096, 7168, 61, 58
    found = steps("deepseek-v3", Parallel(tp=8, ep=8), max_model_len=length, batch_size=batch)["decode"]
    attention, experts = (
        next(row.work for row in found.by_part if row.name == name) for name in ("mixer.mla", "ffn.moe")
    )
    # On every rank whole: what goes down to latents. By heads: what goes up from them, and o_proj.
    down = width * 1536 + width * 576
    by_heads = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * width
    assert attention.weight_bytes == layers * (down + by_heads // 8) * 2
    assert attention.state_bytes == layers * 576 * length * batch * 2
    pairs = 2 * (576 + 512) * length * 128 // 8
    assert attention.flops == layers * batch * (2 * (down + by_heads // 8) + pairs)
    expert, router = 3 * width * 2048, width * 256
    assert experts.flops == sparse * batch * 2 * (8 * expert // 8 + expert // 8 + router)
    seen = 32 * (1 - (1 - 8 / 256) ** batch)
    assert experts.weight_bytes == pytest.approx(sparse * 2 * (seen * expert + expert // 8 + router), rel=1e-5)
    hidden = batch * width * 2
    assert found.communication_s == {
        "all_reduce": pytest.approx((1 + 2 * layers) * hidden * 2 * 7 / 8 / NVLINK, rel=1e-4),
        "all_to_all": pytest.approx(sparse * 2 * hidden * 8 / 8 * 7 / 8 / NVLINK, rel=1e-4),
        "all_gather": pytest.approx(batch * 129_280 * 4 * 7 / 8 / NVLINK, rel=1e-4),
    }
