"""Memory of training: parts equal real tensors, cuts are those of papers, options hold together."""

from dataclasses import fields

import pytest

import archc
from archc.errors import ArchcError, SpecError
from archc.estimation.activations import measure_activations
from archc.ops.attention import Attention
from archc.planning.parallel import Parallel
from archc.planning.training.estimate import estimate_training
from archc.planning.training.optimizers import OPTIMIZERS
from archc.planning.training.schedules import SCHEDULES
from archc.spec.shipped import shipped_specs

TINY = ("tiny-llama", "tiny-kimi-linear", "tiny-deepseek-v3", "tiny-gpt-oss", "tiny-qwen3-next")
BATCH, SEQ = 4, 64


def only(found):
    """The one stage of an estimate without pipeline."""
    assert len(found.stages) == 1
    return found.stages[0]


def trained(name, dtype, optimizer="AdamW", **options):
    torch = pytest.importorskip("torch")
    from tests.torch_backend.examples import ids_for

    model = archc.build(name, device="cpu", dtype=dtype, seed=0)
    ids = ids_for(model, 2, 16)
    torch.nn.functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten()).backward()
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), **options)
    optimizer.step()
    return model, optimizer


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_parameters_gradients_and_states_are_those_of_a_real_step(name, dtype):
    model, optimizer = trained(name, dtype)
    weights = only(estimate_training(name, dtype=dtype, master_weights=False, max_model_len=16)).weights
    states = [(key, value) for state in optimizer.state.values() for key, value in state.items()]
    assert weights.parameters == sum(weight.nbytes for weight in model.parameters())
    assert weights.buffers == sum(buffer.nbytes for buffer in model.buffers())
    assert weights.gradients == sum(weight.grad.nbytes for weight in model.parameters())
    assert weights.optimizer == sum(value.nbytes for key, value in states if key != "step")
    assert weights.host == sum(value.nbytes for key, value in states if key == "step")


@pytest.mark.torch
@pytest.mark.parametrize("name", TINY)
def test_a_masters_moments_are_those_of_the_same_model_in_float32(name):
    """bf16 weights and gradients, float32 copies of them, and states of a float32 step."""
    narrow, _ = trained(name, "bfloat16")
    wide, optimizer = trained(name, "float32")
    weights = only(estimate_training(name, dtype="bfloat16", max_model_len=16)).weights
    assert weights.parameters == weights.gradients == sum(weight.nbytes for weight in narrow.parameters())
    narrow_dtypes = {key: weight.dtype for key, weight in narrow.named_parameters()}
    assert weights.masters == sum(
        weight.nbytes for key, weight in wide.named_parameters() if narrow_dtypes[key] != weight.dtype
    )
    assert weights.optimizer == sum(
        value.nbytes for state in optimizer.state.values() for key, value in state.items() if key != "step"
    )


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt-oss"])
def test_what_is_saved_when_the_loss_is_there_is_activations_and_loss(name, dtype):
    torch = pytest.importorskip("torch")
    from tests.torch_backend.examples import ids_for

    model = archc.build(name, device="cpu", dtype=dtype, seed=0)
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    ids = ids_for(model, BATCH, SEQ)
    targets, saved = ids.clone(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        logits = model(ids).float().flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, targets.flatten())
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    del loss
    rank = only(estimate_training(name, dtype=dtype, micro_batch_size=BATCH, max_model_len=SEQ, kernels="cpu", zero=0))
    assert rank.activation_bytes + rank.loss.saved == sum(n for place, n in storages.items() if place not in known)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["kimi-linear-48b-a3b", "llama-3-8b", "deepseek-v3"])
def test_lines_sum_to_the_peak_on_every_stage(name, recompute):
    found = estimate_training(
        name, max_model_len=4096, parallel=Parallel(pp=3, dp=4), zero=2, recompute=recompute, micro_batches=6
    )
    for stage in found.stages:
        assert sum(stage.rows().values()) == stage.peak_bytes
    assert found.peak_bytes == max(stage.peak_bytes for stage in found.stages)
    assert found.to_json()["peak_stage"] == found.peak_stage.stage


@pytest.mark.parametrize("name", shipped_specs())
def test_every_shipped_spec_is_estimated(name):
    graph = archc.expand(archc.load_spec(name))
    length = 256 if "input_ids" in graph.inputs else None
    found = estimate_training(graph, max_model_len=length, recompute="full", zero=3, gpus=4)
    rank = only(found)
    assert sum(rank.rows().values()) == rank.peak_bytes == found.peak_bytes
    assert rank.weights.elements == archc.estimate(graph, max_model_len=length).parameters.total
    assert min(value for value in rank.to_json().values() if isinstance(value, int)) >= 0


def test_16_bytes_a_parameter_lie_there_under_mixed_precision():
    """2 of the weight, 2 of its gradient, 4 of the master, 8 of Adam's moments: ZeRO's 16 (arXiv 1910.02054, section 3.1)."""
    found = only(estimate_training("llama-3-8b", max_model_len=1024))
    assert found.weights.resident == 16 * 8_030_261_248


@pytest.mark.parametrize(("zero", "bytes_a_parameter"), [(0, 16.0), (1, 4 + 12 / 64), (2, 2 + 14 / 64)])
def test_zero_cuts_what_its_paper_says(zero, bytes_a_parameter):
    """arXiv 1910.02054, figure 1: of 7.5 B parameters over 64 ranks 120, 31.4 and 16.6 GB, in its 10^9."""
    found = only(estimate_training("llama-3-8b", max_model_len=1024, zero=zero, gpus=64))
    assert found.weights.resident / 8_030_261_248 == pytest.approx(bytes_a_parameter, rel=1e-5)
    published = {0: 120, 1: 31.4, 2: 16.6}[zero]
    assert 7.5 * bytes_a_parameter == pytest.approx(published, abs=0.05)


def test_zero_3_holds_pieces_of_float32_masters_alone():
    """FSDP2: 4 bytes of the piece, 4 of its gradient, 8 of its moments; the model's dtype exists while a layer is gathered."""
    weights = only(estimate_training("llama-3-8b", max_model_len=1024, zero=3, gpus=64)).weights
    assert weights.resident == 16 * 8_030_261_248 // 64
    layer, outside = 218_112_000, 2 * 128_256 * 4096 + 4096
    assert weights.gathered == 2 * (2 * layer + outside)
    assert weights.gradients_in_flight == 2 * layer + 4 * outside


def test_experts_are_cut_over_the_ranks_that_hold_the_same_ones():
    """DeepSeek-V3's experts under ep 64 of 128 ranks are held by two: ZeRO-1 halves their states, and cuts all others by 128."""
    name, parallel = "deepseek-v3", Parallel(dp=128, ep=64)
    cut = only(estimate_training(name, max_model_len=4096, parallel=parallel, zero=1)).weights
    routed = 58 * 256 * 3 * 7168 * 2048
    total = 671_026_404_352
    assert cut.elements == routed // 64 + (total - routed)
    assert cut.masters == pytest.approx(4 * (routed // 64 / 2 + (total - routed) / 128), rel=1e-4)


def test_a_mixture_of_experts_is_not_priced_as_a_dense_model():
    """Megatron-LM issue 1784: activations of a token are those of its own 8 experts and the shared one, not of 256."""
    found = only(estimate_training("deepseek-v3", max_model_len=4096, recompute="full"))
    kinds = found.activations
    assert set(kinds) == {"outside layers", "mla + dense", "mla + moe"}
    rows = 4096 * 8 * 2048 * 2
    assert not archc.estimate_training("deepseek-v3", max_model_len=4096).left_out
    # Of one layer's routed experts: gate, up, their activation and product, each a row an expert of a token.
    assert 3 * rows < found.recompute_working < 40 * rows


class Silent(Attention):
    """An attention that does not say what backward keeps of it, as a third party's op may."""

    __slots__ = ()

    def saves(self, tape, inputs, weights):
        return None


@pytest.mark.parametrize("name", ["tiny-scores", "tiny-llama", "tiny-t5"])
@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_activations_are_the_graphs_for_one_sequence_and_for_several(name, sequences):
    # A product takes the heads of one sequence as they lie, and copies those of several.
    graph = archc.expand(archc.load_spec(name))
    kept = measure_activations(graph, batch_size=sequences, seq_len=64, dtype="float32", device="cpu").bytes
    found = estimate_training(name, micro_batch_size=sequences, max_model_len=64, kernels="cpu", dtype="float32")
    assert only(found).activation_bytes == kept


def test_what_an_op_can_not_say_is_named_and_not_zero():
    graph = archc.expand(archc.load_spec("tiny-llama"))
    whole = estimate_training(graph, max_model_len=16)
    for _, node in graph.walk():
        if node.op.op_name == "attention" and not isinstance(node.op, Silent):
            node.op = Silent(**{each.name: getattr(node.op, each.name) for each in fields(node.op) if each.init})
    found = estimate_training(graph, max_model_len=16)
    assert found.left_out == [(f"layers.{layer}.mixer.attention", "attention") for layer in range(graph.num_layers)]
    assert found.to_json()["left_out"][0] == {"path": "layers.0.mixer.attention", "op": "attention"}
    assert 0 < found.peak_bytes < whole.peak_bytes


TABLES = {"kimi-linear-48b-a3b": 0, "jamba-v0.1": 0, "llama-3-8b": 512 * 512, "gemma-3-4b": 2 * 1024 * 512}
"""Bytes of rotations for 512 tokens, which every stage makes for itself."""


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("name", sorted(TABLES))
def test_stages_together_keep_what_the_whole_model_keeps(name, stages):
    options = {"max_model_len": 512, "recompute": "full"}
    whole = only(estimate_training(name, **options)).activation_bytes
    cut = estimate_training(name, parallel=Parallel(pp=stages), micro_batches=1, **options).stages
    again = sum(stage.activation_bytes for stage in cut) - whole
    assert 0 <= again <= (stages - 1) * TABLES[name]
    assert bool(again) == bool(TABLES[name])


IN_FLIGHT = {
    ("gpipe", 1): [8, 8, 8, 8],
    ("1f1b", 1): [4, 3, 2, 1],
    ("zero-bubble", 1): [4, 4, 4, 4],
    ("interleaved", 2): [11, 9, 7, 5],
    ("interleaved", 3): [15, 13, 11, 9],
}
"""Of 8 micro-batches on 4 stages; interleaved in passes over one run of layers."""


@pytest.mark.parametrize(("schedule", "virtual"), sorted(IN_FLIGHT))
def test_a_stage_has_as_many_micro_batches_in_flight_as_its_schedule_says(schedule, virtual):
    found = estimate_training(
        "llama-3-8b",
        max_model_len=2048,
        parallel=Parallel(pp=4),
        schedule=schedule,
        virtual_stages=virtual,
        micro_batches=8,
    )
    assert [stage.in_flight for stage in found.stages] == IN_FLIGHT[schedule, virtual]


def simulated_in_flight(stages, micro_batches):
    """The most micro-batches between forward and backward of 1F1B, by running it: forwards as soon as they can, then in turn."""
    most = [0] * stages
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        order = ["F"] * warm_up + ["F", "B"] * (micro_batches - warm_up) + ["B"] * warm_up
        now = 0
        for step in order:
            now += 1 if step == "F" else -1
            most[stage] = max(most[stage], now)
    return most


@pytest.mark.parametrize("micro_batches", [1, 2, 5, 9])
@pytest.mark.parametrize("stages", [2, 4, 7])
def test_1f1b_in_flight_is_that_of_its_order_of_passes(stages, micro_batches):
    rule = SCHEDULES["1f1b"].in_flight
    found = [rule(stage, stages, micro_batches, 1) for stage in range(stages)]
    assert found == simulated_in_flight(stages, micro_batches)


def test_an_interleaved_first_stage_keeps_the_layers_that_its_paper_says():
    """arXiv 2205.05198, section 4.2.3: L (1 + (p - 1) / (p m)) layers, m runs of layers a stage."""
    for stages, virtual in ((4, 2), (8, 3), (35, 3)):
        passes = SCHEDULES["interleaved"].in_flight(0, stages, 10**6, virtual)
        assert passes / (stages * virtual) == pytest.approx(1 + (stages - 1) / (stages * virtual))


def test_context_parallelism_gives_each_rank_its_share_of_the_tokens():
    whole = only(estimate_training("llama-3-8b", max_model_len=32768))
    cut = only(estimate_training("llama-3-8b", max_model_len=32768, parallel=Parallel(cp=8)))
    assert cut.activation_bytes == pytest.approx(whole.activation_bytes / 8, rel=1e-6)
    assert cut.loss.logits == whole.loss.logits // 8


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("kimi-linear-48b-a3b", "linear_attention of kda carries a recurrent state"),
        ("jamba-v0.1", "selective_scan of mamba carries a recurrent state"),
        ("linformer", "has no softmax attention over single tokens"),
        ("nsa-demo", "native_sparse_attention of nsa reads what earlier tokens left behind"),
    ],
)
def test_mixers_that_can_not_share_out_tokens_are_refused_with_the_op(name, why):
    with pytest.raises(SpecError, match=why):
        estimate_training(name, max_model_len=1024, parallel=Parallel(cp=2))


def test_sequence_parallelism_cuts_what_tensor_parallelism_leaves_whole():
    options = {"max_model_len": 8192, "parallel": Parallel(tp=8)}
    alone = only(estimate_training("llama-3-8b", **options))
    with_it = only(estimate_training("llama-3-8b", sequence_parallel=True, **options))
    whole = only(estimate_training("llama-3-8b", max_model_len=8192))
    assert whole.activation_bytes / 8 < with_it.activation_bytes * 1.01 < alone.activation_bytes
    assert with_it.activation_bytes == pytest.approx(whole.activation_bytes / 8, rel=1e-3)


def test_a_chunked_loss_holds_logits_of_a_chunk():
    whole = only(estimate_training("llama-3-8b", max_model_len=8192)).loss
    chunked = only(estimate_training("llama-3-8b", max_model_len=8192, loss_chunk=1024)).loss
    assert whole.logits == 8192 * 128_256 * 2
    assert (chunked.logits, chunked.working) == (whole.logits // 8, whole.working // 8)
    assert chunked.saved - 8192 * 8 - 4 == (whole.saved - 8192 * 8 - 4) // 8


def test_the_largest_micro_batch_fits_and_the_next_does_not():
    options = {"max_model_len": 4096, "zero": 3, "recompute": "full", "gpus": 8}
    most = estimate_training("llama-3-8b", gpu="h100", **options).largest_micro_batch
    assert estimate_training("llama-3-8b", gpu="h100", micro_batch_size=most, **options).fits
    assert not estimate_training("llama-3-8b", gpu="h100", micro_batch_size=most + 1, **options).fits


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_is_estimated(optimizer):
    weights = only(estimate_training("kimi-linear-48b-a3b", optimizer=optimizer, max_model_len=1024)).weights
    moments = {"adamw": 8, "muon": 4, "sgd": 4, "adamw8bit": 2, "adafactor": 0}[optimizer]
    assert weights.optimizer / weights.elements == pytest.approx(moments, abs=0.12)


def test_every_mistake_is_said_at_once():
    with pytest.raises(SpecError) as raised:
        estimate_training(
            "kimi-linear-48b-a3b",
            optimizer="adam",
            recompute="all",
            schedule="1f1",
            dtype="int4",
            zero=7,
            gpu="h20",
            micro_batch_size=0,
            source_len=3,
            parallel=Parallel(tp=3, cp=2, ep=2),
        )
    text = "\n".join(problem.message for problem in raised.value.problems)
    for part in (
        "device 'h20' is unknown. Did you mean",
        "dtype 'int4' is not taken here; known: float64, float32, bfloat16, float16",
        "micro_batch_size should be at least 1 (found 0)",
        "source_len: kimi-linear-48b-a3b has no encoder",
        "optimizer: 'adam' is unknown; known: adamw, muon, adafactor, adamw8bit and sgd. Did you mean adamw?",
        "recompute: 'all' is unknown; known: none, selective and full",
        "schedule: '1f1' is unknown; known: gpipe, 1f1b, interleaved and zero-bubble. Did you mean 1f1b?",
        "zero should be 0, 1, 2 or 3 (found 7)",
        "ep 2 with tp 3 needs sequence parallelism",
        "carries a recurrent state",
        "32 heads of kda (layers.0) can't be cut into 3 (tp)",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"schedule": "interleaved"}, "interleaved needs stages"),
        ({"schedule": "interleaved", "parallel": Parallel(pp=4), "micro_batches": 6}, "6, to be a multiple of pp, 4"),
        ({"gpus": 12, "parallel": Parallel(tp=8)}, "12 gpus are not what tp 8 takes, 8"),
        ({"parallel": Parallel(cp=3), "max_model_len": 1000}, "no multiple of 2 x cp, 6"),
        (
            {"parallel": Parallel(tp=8), "max_model_len": 1001, "sequence_parallel": True},
            "can't be cut into tp x cp, 8",
        ),
        ({"parallel": Parallel(pp=40)}, "32 layers can't be cut into 40 stages"),
        ({"loss_chunk": 0}, "loss_chunk should be at least 1"),
        ({"grad_dtype": "fp8"}, "grad_dtype 'fp8' is not taken here"),
    ],
)
def test_options_that_can_not_go_together_are_refused(options, why):
    with pytest.raises(ArchcError, match=why):
        estimate_training("llama-3-8b", **options)


def test_numbers_beyond_any_machine_stay_exact():
    found = only(estimate_training("llama-3-8b", max_model_len=10**15, micro_batch_size=10**3))
    assert found.loss.logits == 10**18 * 128_256 * 2


def test_an_encoder_without_a_head_has_no_loss_and_says_so():
    found = estimate_training("bert-base-uncased", max_model_len=512)
    assert only(found).loss is None
    assert "there are no logits: no loss is counted" in found.notes
