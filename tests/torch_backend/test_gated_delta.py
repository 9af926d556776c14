# B batch, S tokens, H heads, K key channels, V value channels
"""The gated delta rule: the fast operator against its float64 twin, transformers' fallback and its own FLOP figures."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from archc.ops import linear_attention as ops  # noqa: E402
from archc.torch_backend.leaves.linear_attention import LinearAttention  # noqa: E402
from archc.torch_backend.operators import gated_delta  # noqa: E402
from archc.torch_backend.operators.gated_delta import (  # noqa: E402
    gated_delta_flops,
    gated_delta_recurrent,
    gated_delta_rule,
)
from archc.torch_backend.twins.gated_delta import chunked_counted, recurrent_float64  # noqa: E402

pytestmark = pytest.mark.torch

LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 100, 150, 300]
SCALE = 0.3
NAMES = ("out", "final_state", "d_q", "d_k", "d_v", "d_log_decay", "d_beta", "d_state")


def example(tokens, per_head=False, with_state=True, strength=1.0, dtype=torch.float32, batch=2, heads=3, K=16, V=24):
    """q, k, v, log_decay, beta, state: unit queries and keys, decays of a trained model's kind times `strength`."""
    draw = torch.Generator().manual_seed(tokens)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    q, k = (F.normalize(normal(batch, tokens, heads, K), dim=-1) for _ in range(2))
    v = normal(batch, tokens, heads, V)
    log_decay = -strength * F.softplus(normal(batch, tokens, heads, *(() if per_head else (K,))))
    beta = normal(batch, tokens, heads).sigmoid()
    inputs = [tensor.to(dtype).requires_grad_() for tensor in (q, k, v, log_decay, beta)]
    return [*inputs, normal(batch, heads, K, V).requires_grad_() if with_state else None]


def results(function, inputs, **options):
    """Outputs, final state and the gradients of all inputs there are, under fixed random gradients of both results."""
    out, final_state = function(*inputs, scale=SCALE, **options)
    draw = torch.Generator().manual_seed(7)
    d_out, d_state = (torch.randn(x.shape, generator=draw).to(x.dtype) for x in (out, final_state))
    wanted = [tensor for tensor in inputs if tensor is not None]
    return [
        out,
        final_state,
        *torch.autograd.grad((out, final_state), wanted, (d_out, d_state), materialize_grads=True),
    ]


def in_float64(inputs):
    return [None if tensor is None else tensor.detach().double().requires_grad_() for tensor in inputs]


def assert_equal(got, expected, tolerance):
    """Largest difference relative to the largest expected entry, result by result."""
    for name, one, other in zip(NAMES, got, expected, strict=False):
        assert torch.isfinite(one).all(), name
        error = (one.double() - other.double()).abs().max() / other.abs().max().clamp(min=1e-6)
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("per_head", [False, True], ids=["per-channel", "per-head"])
@pytest.mark.parametrize("with_state", [False, True], ids=["no-state", "state"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_chunked_equals_recurrent_for_lengths_that_are_no_multiple_of_the_chunk(tokens, with_state, per_head):
    inputs = example(tokens, per_head=per_head, with_state=with_state)
    expected = results(recurrent_float64, in_float64(inputs))
    assert_equal(results(gated_delta_rule, inputs), expected, 3e-6)
    if tokens <= 65:
        assert_equal(results(gated_delta_recurrent, inputs), expected, 3e-6)


def test_float64_inputs_stay_float64_and_agree_to_its_precision():
    inputs = in_float64(example(150))
    got = results(gated_delta_rule, inputs)
    assert all(tensor.dtype == torch.float64 for tensor in got)
    assert_equal(got, results(recurrent_float64, inputs), 1e-13)


@pytest.mark.parametrize("heads_together", [1, 2, 3, 4])
def test_several_slabs_and_groups_of_heads_chain_their_states_and_gradients(heads_together, monkeypatch):
    monkeypatch.setattr(gated_delta, "CPU_BUDGET", heads_together * 8 * 24)
    inputs = example(600)
    assert_equal(results(gated_delta_rule, inputs), results(recurrent_float64, in_float64(inputs)), 3e-6)


@pytest.mark.parametrize("twin", [None, "needed", "dense"])
@pytest.mark.parametrize("per_head", [False, True], ids=["per-channel", "per-head"])
@pytest.mark.parametrize("tokens", [1, 17, 64, 150])
def test_a_key_head_serves_the_next_value_heads_in_values_and_gradients(tokens, per_head, twin):
    op = ops.LinearAttention(num_heads=6, num_key_heads=2, key_dim=16, value_dim=24, scale=SCALE)
    q, k, *inputs = example(tokens, per_head=per_head, with_state=False, strength=0.2, heads=6)[:5]
    inputs = [x.detach()[:, :, ::3].clone().requires_grad_() for x in (q, k)] + inputs

    def grouped(q, k, v, log_decay, beta, *, scale):
        state = torch.zeros(2, 6, 16, 24)
        flat = [x if x is beta or x.dim() == 3 else x.flatten(-2) for x in (q, k, v, log_decay, beta)]
        return LinearAttention(op, twin)(*flat, None, state).unflatten(-1, (6, 24)), state

    def repeated(q, k, v, log_decay, beta, *, scale):
        q, k = (torch.stack([x[:, :, head // 3] for head in range(6)], 2) for x in (q, k))
        return recurrent_float64(q, k, v, log_decay, beta, None, scale=scale)

    expected = results(repeated, in_float64(inputs))
    assert_equal(results(grouped, inputs), expected, 3e-6)


@pytest.mark.parametrize("strength", [3.0, 50.0, 1000.0])
def test_strong_decays_neither_overflow_nor_lose_precision(strength):
    inputs = example(150, strength=strength)
    assert_equal(results(gated_delta_rule, inputs), results(recurrent_float64, in_float64(inputs)), 3e-6)


def test_a_channel_that_forgets_everything_leaves_its_neighbours_exact():
    inputs = example(100, strength=0.01)
    with torch.no_grad():
        inputs[3][:, 40, :, ::2] = -5000.0
    assert_equal(results(gated_delta_rule, inputs), results(recurrent_float64, in_float64(inputs)), 3e-6)


@pytest.mark.parametrize("tokens", [1, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_computed_in_float32(dtype, tokens):
    inputs = example(tokens, dtype=dtype)
    got = results(gated_delta_rule, inputs)
    assert got[0].dtype == dtype
    assert got[1].dtype == torch.float32
    assert [grad.dtype for grad in got[2:]] == [*(tensor.dtype for tensor in inputs)]
    expected = results(recurrent_float64, in_float64(inputs))
    assert_equal(got[1:2], expected[1:2], 3e-6)
    assert_equal(got, expected, 2e-2 if dtype == torch.bfloat16 else 2e-3)


def test_autocast_does_not_lower_the_precision():
    def under_autocast(*tensors, scale):
        with torch.autocast("cpu", torch.bfloat16):
            return gated_delta_rule(*tensors, scale=scale)

    for tokens in (1, 100):
        inputs = example(tokens)
        assert_equal(results(under_autocast, inputs), results(recurrent_float64, in_float64(inputs)), 3e-6)


def test_strided_inputs_give_the_same_results_as_contiguous_ones():
    inputs = example(100)
    turned = [x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for x in inputs]
    assert_equal(results(gated_delta_rule, turned), results(gated_delta_rule, inputs), 1e-7)


def test_agrees_with_the_chunked_fallback_of_transformers():
    modeling = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    q, k, v, log_decay, beta, state = inputs = example(150)
    theirs = modeling.chunk_kimi_delta_attention(q, k, v, log_decay, beta, initial_state=state, output_final_state=True)
    grads = torch.autograd.grad((theirs[0].sum(), theirs[1].sum()), inputs)
    out, final_state = gated_delta_rule(*inputs, scale=q.shape[-1] ** -0.5)
    ours = torch.autograd.grad((out.sum(), final_state.sum()), inputs)
    assert_equal([out, final_state, *ours], [*theirs, *grads], 1e-5)


@pytest.mark.parametrize("tokens", [2, 65])
def test_the_operators_obey_the_rules_of_torch_library(tokens):
    q, k, v, log_decay, beta, state = example(tokens, batch=1, heads=2, K=4, V=6)
    arguments = (q, k, v, log_decay, beta, state, SCALE)
    torch.library.opcheck(torch.ops.archc.gated_delta.default, arguments)


def test_compiles_whole_as_one_node_and_once_for_all_lengths():
    torch._dynamo.reset()
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(gated_delta_rule, fullgraph=True, backend=backend)
    for tokens in (70, 130, 600, 64):
        inputs = example(tokens)
        assert_equal(results(compiled, inputs), results(gated_delta_rule, inputs), 1e-6)
    assert backend.frame_count <= 2
    targets = [node.target for node in backend.graphs[-1].graph.nodes if node.op == "call_function"]
    assert sum("gated_delta" in str(target) for target in targets) == 1
    torch._dynamo.reset()


def test_checkpointing_gives_equal_gradients():
    inputs = example(150)

    def checkpointed(*tensors, scale):
        return checkpoint(lambda *xs: gated_delta_rule(*xs, scale=scale), *tensors, use_reentrant=False)

    assert_equal(results(checkpointed, inputs), results(gated_delta_rule, inputs), 1e-7)


def test_the_backward_keeps_only_the_inputs_and_one_state_a_slab():
    inputs = example(1100)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        gated_delta_rule(*inputs, scale=SCALE)
    kept = sum(x.numel() for x in saved)
    states = inputs[5].numel() * -(-1100 // 512)
    assert kept == sum(x.numel() for x in inputs) + states


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("pairs", ["needed", "dense"])
def test_the_counted_twin_computes_the_same_function(pairs, per_head):
    inputs = in_float64(example(100, strength=0.2, per_head=per_head))
    assert_equal(results(chunked_counted, inputs, pairs=pairs), results(recurrent_float64, inputs), 1e-10)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 150])
@pytest.mark.parametrize("pairs", ["needed", "dense"])
def test_the_counted_twin_multiplies_exactly_what_the_closed_form_says(pairs, tokens):
    inputs = in_float64(example(tokens, strength=0.2))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        chunked_counted(*inputs, scale=SCALE, pairs=pairs)
    assert counter.get_total_flops() == gated_delta_flops(2, tokens, 3, 16, 24, pairs)


def test_the_closed_form_is_the_one_of_the_convention():
    K, V, r = 16, 24, 22
    needed = r * (r - 1) * K + r * (r + 1) * K + r * (r - 1) * (K + V) + 6 * r * K * V + r * (r + 1) * V
    dense = 4 * 64 * 64 * K + 2 * 64 * 64 * (K + V) + 6 * 64 * K * V + 2 * 64 * 64 * V
    full = 64 * 63 * K + 64 * 65 * K + 64 * 63 * (K + V) + 6 * 64 * K * V + 64 * 65 * V
    assert gated_delta_flops(2, 150, 3, K, V, "needed") == 6 * (2 * full + needed)
    assert gated_delta_flops(2, 150, 3, K, V, "dense") == 6 * 3 * dense


def test_the_flop_counter_sees_the_dense_figure_forward_and_twice_that_backward():
    inputs = example(150)
    dense = gated_delta_flops(2, 150, 3, 16, 24, "dense")
    with FlopCounterMode(display=False) as counter:
        out, _ = gated_delta_rule(*inputs, scale=SCALE)
    assert counter.get_total_flops() == dense
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * dense
