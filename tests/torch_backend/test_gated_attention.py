"""Linear attention with a decay a head: the operator against its definition in float64, values and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from archc.torch_backend.operators import gated_attention  # noqa: E402
from archc.torch_backend.operators.gated_attention import (  # noqa: E402
    gated_attention_flops,
    gated_attention_rule,
)
from archc.torch_backend.twins.gated_attention import gated_attention_twin, recurrent_float64  # noqa: E402

pytestmark = pytest.mark.torch

SCALE = 0.3
LENGTHS = (1, 2, 63, 64, 65, 130, 513, 600)


def drawn(tokens, *, heads=4, key_heads=2, decay=0.3, dtype=torch.float64, seed=0):
    """(q, k, v, log decay, state)."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((2, tokens, key_heads, 5), (2, tokens, key_heads, 5), (2, tokens, heads, 6), (2, heads, 5, 6))
    q, k, v, state = (torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)
    log_decay = (-decay * torch.rand(2, tokens, heads, generator=draw, dtype=torch.float64)).to(dtype)
    return q, k, v, log_decay, state


def assert_close(got, want, tolerance):
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(
            one.double(), other.double(), rtol=0, atol=tolerance * float(other.detach().abs().max())
        )


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_operator_is_the_recurrence(tokens, key_heads):
    inputs = drawn(tokens, key_heads=key_heads)
    assert_close(gated_attention_rule(*inputs, scale=SCALE), recurrent_float64(*inputs, scale=SCALE), 1e-12)
    halves = tuple(x.float() for x in inputs)
    assert_close(gated_attention_rule(*halves, scale=SCALE), recurrent_float64(*halves, scale=SCALE), 2e-6)


@pytest.mark.parametrize("decay", [0.0, 1e-3, 1.0, 300.0])
def test_decays_weak_and_strong_keep_their_digits(decay):
    inputs = tuple(x.float() for x in drawn(150, decay=decay))
    assert_close(gated_attention_rule(*inputs, scale=SCALE), recurrent_float64(*inputs, scale=SCALE), 2e-6)


@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("tokens", [2, 64, 70, 530])
@pytest.mark.parametrize("decay", [0.3, 30.0])
def test_gradients_are_those_of_the_recurrence(tokens, key_heads, decay):
    inputs = drawn(tokens, key_heads=key_heads, decay=decay)
    found = []
    for rule in (gated_attention_rule, recurrent_float64):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, final = rule(*leaves, scale=SCALE)
        draw = torch.Generator().manual_seed(9)
        directions = [torch.randn(y.shape, generator=draw, dtype=torch.float64) for y in (out, final)]
        found.append(torch.autograd.grad([out, final], leaves, directions))
    assert_close(*found, 1e-11)


@pytest.mark.parametrize("tokens", [2, 64, 100])
@pytest.mark.parametrize("pairs", ["needed", "dense"])
def test_torch_counts_in_the_twin_what_the_formula_says(tokens, pairs):
    inputs = drawn(tokens)
    with FlopCounterMode(display=False) as counter:
        got = gated_attention_twin(pairs)(*inputs, scale=SCALE)
    assert_close(got, recurrent_float64(*inputs, scale=SCALE), 1e-12)
    assert counter.get_total_flops() == gated_attention_flops(2, tokens, 4, 2, 5, 6, pairs)


def test_the_counter_sees_the_operators_of_training():
    leaves = [x.requires_grad_() for x in drawn(100)]
    with FlopCounterMode(display=False) as counter:
        gated_attention_rule(*leaves, scale=SCALE)[0].sum().backward()
    assert counter.get_total_flops() == 3 * gated_attention_flops(2, 100, 4, 2, 5, 6)


def test_the_operator_keeps_torchs_rules_for_operators():
    inputs = [x.requires_grad_() for x in drawn(70)]
    torch.library.opcheck(torch.ops.archc.gated_attention.default, (*inputs, SCALE))


def test_a_batch_in_half_precision_keeps_its_state_in_float32():
    inputs = drawn(40, dtype=torch.bfloat16)
    out, final = gated_attention_rule(*inputs, scale=SCALE)
    assert (out.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    assert_close((out, final), recurrent_float64(*inputs, scale=SCALE), 1e-2)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_batch_in_slices_chains_states_and_gradients_of_its_rows(rows, monkeypatch):
    monkeypatch.setattr(gated_attention, "CPU_BUDGET", rows * 4 * gated_attention.SLAB * gated_attention.CHUNK)
    inputs = [torch.cat((x, x.flip(0), x[:1]), 0) for x in drawn(600)]
    found = []
    for rule in (gated_attention_rule, recurrent_float64):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, final = rule(*leaves, scale=SCALE)
        found.append((out, final, *torch.autograd.grad(out.sum() + final.square().sum(), leaves)))
    assert_close(*found, 1e-11)


def test_a_step_that_forgets_everything_leaves_its_neighbours_exact():
    inputs = [x.float() for x in drawn(100, decay=0.01)]
    inputs[3][:, 40, ::2] = -5000.0
    assert_close(gated_attention_rule(*inputs, scale=SCALE), recurrent_float64(*inputs, scale=SCALE), 2e-6)


def test_the_backward_keeps_only_the_inputs_and_one_state_a_slab():
    inputs = [x.requires_grad_() for x in drawn(1100)]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        gated_attention_rule(*inputs, scale=SCALE)
    kept = {x.untyped_storage().data_ptr(): x.numel() for x in saved}
    slabs = -(-1100 // gated_attention.SLAB)
    assert sum(kept.values()) == sum(x.numel() for x in inputs) + slabs * inputs[4].numel()
