"""The graph's FLOPs are those that torch's counter sees in the readable twins, to the integer."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import archc  # noqa: E402
from archc.estimation.estimate import estimate  # noqa: E402
from archc.ir.size import evaluate  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from archc.torch_backend.twins.linear_attention import delta_step, delta_twin  # noqa: E402
from tests.torch_backend.examples import FFNS, KDA, MIXERS, TINY, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

MIXING = ("attention", "latent_attention", "sparse_latent_attention", "linear_attention", "state_space")
ONE_OF_EACH = ["gqa", "gqa short window", "mla", "sparse_mla", "kda", "gated_deltanet", "mamba2 groups"]

# Pieces of one conversation: a prefill, a chunk shorter than every window, one longer than the short ones, then decode.
PIECES = [("many", 13), ("many", 4), ("many", 9), ("few", 1), ("few", 1)]


def formula(graph, form, pairs, *, batch, seq, past):
    """FLOPs of all nodes by op name."""
    total: dict[str, int] = {}
    for _, node in graph.walk():
        flops = node.op.flops([value.type for value in node.inputs], form, pairs)
        name = node.op.op_name
        total[name] = total.get(name, 0) + evaluate(flops, {"batch": batch, "seq": seq, "past": past})
    return total


def counted(run):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def check_conversation(spec, pairs, pieces, batch=1):
    model = lively(spec, twin=pairs)
    cache = archc.new_cache(model, batch=batch, max_model_len=sum(seq for _, seq in pieces))
    past = 0
    for form, seq in pieces:
        ids, step = ids_for(model, batch, seq), Step.at(past, seq)
        flops = formula(model.archc_graph, form, pairs, batch=batch, seq=seq, past=past)
        assert counted(lambda ids=ids, step=step: model(ids, step, cache)) == sum(flops.values()), (form, seq, past)
        past += seq


@pytest.mark.parametrize("pairs", ["needed", "dense"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_mixer_costs_what_the_counter_sees(mixer, pairs):
    check_conversation(small_spec(MIXERS[mixer], layers=1), pairs, PIECES)


@pytest.mark.parametrize("ffn", FFNS)
def test_a_feed_forward_costs_what_the_counter_sees(ffn):
    check_conversation(small_spec(ffn=FFNS[ffn], layers=1), "dense", [("many", 7), ("few", 1)], batch=2)


@pytest.mark.parametrize("pairs", ["needed", "dense"])
@pytest.mark.parametrize("spec", TINY)
def test_a_whole_model_costs_what_the_counter_sees(spec, pairs):
    check_conversation(spec, pairs, [("many", 18), ("many", 5), ("few", 1)], batch=1)


@pytest.mark.parametrize("pairs", ["needed", "dense"])
@pytest.mark.parametrize("seq", [2, 63, 64, 65, 130])
def test_chunks_of_the_delta_rule_that_are_not_full_are_counted_as_said(seq, pairs):
    check_conversation(small_spec(MIXERS["kda"], layers=1), pairs, [("many", seq), ("many", 3), ("few", 1)])


@pytest.mark.parametrize("mixer", ONE_OF_EACH)
def test_the_batch_multiplies(mixer):
    check_conversation(small_spec(MIXERS[mixer], layers=1), "needed", [("many", 7), ("few", 1)], batch=3)


@pytest.mark.parametrize("form", ["many", "few"])
@pytest.mark.parametrize("mixer", ONE_OF_EACH)
def test_the_counter_sees_inside_every_attention(mixer, form):
    model = lively(small_spec(MIXERS[mixer], layers=1), twin="needed")
    cache = archc.new_cache(model, batch=1, max_model_len=16)
    past, seq = (0, 9) if form == "many" else (9, 1)
    attention = next(path for path, node in model.archc_graph.walk() if node.op.op_name in MIXING)
    inside = FlopCounterMode(display=False, depth=8)
    with torch.no_grad(), inside:
        model(ids_for(model, 1, seq), Step.at(past, seq), cache)
    flops = formula(model.archc_graph, form, "needed", batch=1, seq=seq, past=past)
    found = inside.get_flop_counts()[f"Model.{attention}"]
    assert sum(found.values()) == sum(flops.get(name, 0) for name in MIXING) > 0


@pytest.mark.parametrize(
    "mixer",
    # What an indexer or a gate of blocks chooses has no gradient (tests/plugins/test_sparse_mla.py, test_moba.py).
    [
        n
        for n in MIXERS
        if not n.startswith(
            ("kda", "gated_deltanet", "lightning", "mamba2", "sparse_mla", "moba", "compressed_attention csa")
        )
    ],
)
def test_the_backward_of_a_mixer_costs_twice_its_forward(mixer):
    check_training(small_spec(MIXERS[mixer], layers=1), "needed", seq=9)


@pytest.mark.parametrize("ffn", FFNS)
def test_the_backward_of_a_feed_forward_costs_twice_its_forward(ffn):
    check_training(small_spec(ffn=FFNS[ffn], layers=1), "dense", seq=7)


@pytest.mark.parametrize("spec", ["tiny-llama", "tiny-gpt-oss", "tiny-deepseek-v3"])
def test_the_backward_of_a_whole_model_costs_twice_its_forward(spec):
    check_training(spec, "dense", seq=19)


def check_training(spec, pairs, seq):
    model = lively(spec, twin=pairs)
    with FlopCounterMode(display=False) as counter:
        logits = model(ids_for(model, 1, seq))
        forward = counter.get_total_flops()
        logits.square().sum().backward()
    assert forward == sum(formula(model.archc_graph, "many", pairs, batch=1, seq=seq, past=0).values())
    assert counter.get_total_flops() - forward == 2 * forward


@pytest.mark.parametrize("spec", ["tiny-llama", "tiny-gpt-oss", "tiny-kimi-linear"])
def test_the_fast_operators_report_what_they_multiply(spec):
    model = lively(spec)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = model(ids_for(model, 1, 70))
        forward = counter.get_total_flops()
        logits.square().sum().backward()
    flops = sum(formula(model.archc_graph, "many", "dense", batch=1, seq=70, past=0).values())
    # Latent attention pads its values to the width of its keys, so that fused kernels take them.
    padding = {node.op for _, node in model.archc_graph.walk() if node.op.op_name == "latent_attention"}
    for op in padding:
        layers = sum(node.op == op for _, node in model.archc_graph.walk())
        flops += layers * op.num_heads * 2 * 70 * 70 * (op.nope_dim + op.rope_dim - op.value_dim)
    assert forward == flops
    assert counter.get_total_flops() == 3 * flops


def test_a_training_step_of_the_estimate_is_three_forwards():
    model = lively(small_spec(MIXERS["mla"], FFNS["moe shared"]), twin="needed")
    with FlopCounterMode(display=False) as counter:
        model(ids_for(model, 2, 11)).sum().backward()
    numbers = estimate(model.archc_graph, batch_size=2, max_model_len=11).flops.numbers
    assert counter.get_total_flops() == numbers["train_step"]


@pytest.mark.parametrize("seq", [23, 64, 100])
def test_the_backward_of_the_delta_rule_costs_twice_its_forward_where_a_state_comes_in_and_goes_out(seq):
    inputs = delta_inputs(seq)
    with FlopCounterMode(display=False) as counter:
        out, final = delta_twin("needed")(*inputs, scale=0.25)
        forward = counter.get_total_flops()
        (out.sum() + final.sum()).backward()
    assert forward > 0
    assert counter.get_total_flops() - forward == 2 * forward


def test_the_backward_of_one_token_of_the_delta_rule_costs_twice_its_forward():
    inputs = delta_inputs(1)
    with FlopCounterMode(display=False) as counter:
        out, final = delta_step(*inputs, scale=0.25)
        forward = counter.get_total_flops()
        (out.sum() + final.sum()).backward()
    assert forward == 2 * 3 * (6 * 8 * 12)
    assert counter.get_total_flops() - forward == 2 * forward


def test_training_a_delta_rule_leaves_out_the_gradients_of_states_that_nobody_gave_or_reads():
    # Zeros come in and the last state is thrown away: two products with the first state and one update lose gradients.
    model = lively(small_spec(f"{{{KDA}}}", layers=1), twin="needed")
    seq, heads, width = 23, 2, 16
    with FlopCounterMode(display=False) as counter:
        logits = model(ids_for(model, 1, seq))
        forward = counter.get_total_flops()
        logits.square().sum().backward()
    lost = heads * (2 * (2 * seq * width * width) + 2 * (2 * seq * width * width))
    assert counter.get_total_flops() - forward == 2 * forward - lost


def delta_inputs(seq, batch=2, heads=3, keys=8, values=12):
    """q, k, v, log decay, beta, state, all with gradients."""
    draw = torch.Generator().manual_seed(seq)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    q, k = (torch.nn.functional.normalize(normal(batch, seq, heads, keys), dim=-1) for _ in range(2))
    decay, beta = -0.1 * normal(batch, seq, heads, keys).abs(), normal(batch, seq, heads).sigmoid()
    tensors = (q, k, normal(batch, seq, heads, values), decay, beta, normal(batch, heads, keys, values))
    return [tensor.requires_grad_() for tensor in tensors]
