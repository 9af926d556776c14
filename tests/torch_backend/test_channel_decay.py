"""Linear attention with a decay a key channel: the operator against its definition in float64, values and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from archc.torch_backend.operators import gated_attention  # noqa: E402
from archc.torch_backend.operators.gated_attention import (  # noqa: E402
    gated_attention_flops,
    gated_attention_rule,
)
from archc.torch_backend.operators.gated_delta import gated_delta_rule  # noqa: E402
from archc.torch_backend.twins.gated_attention import gated_attention_twin, recurrent_float64  # noqa: E402

pytestmark = pytest.mark.torch

SCALE = 0.3
HEADS, KEYS, VALUES = 3, 5, 6
LENGTHS = (1, 2, 3, 31, 63, 64, 65, 130, 513, 600)


def drawn(tokens, *, decay=0.3, dtype=torch.float64, seed=0):
    """(q, k, v, log decay, state)."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((2, tokens, HEADS, KEYS),) * 2 + ((2, tokens, HEADS, VALUES), (2, HEADS, KEYS, VALUES))
    q, k, v, state = (torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)
    log_decay = (-decay * torch.rand(q.shape, generator=draw, dtype=torch.float64)).to(dtype)
    return q, k, v, log_decay, state


def assert_close(got, want, tolerance):
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(
            one.double(), other.double(), rtol=0, atol=tolerance * float(other.detach().abs().max())
        )


@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_operator_is_the_recurrence(tokens):
    inputs = drawn(tokens)
    assert_close(gated_attention_rule(*inputs, scale=SCALE), recurrent_float64(*inputs, scale=SCALE), 1e-12)
    halves = tuple(x.float() for x in inputs)
    assert_close(gated_attention_rule(*halves, scale=SCALE), recurrent_float64(*halves, scale=SCALE), 2e-6)


@pytest.mark.parametrize("decay", [0.0, 1e-3, 1.0, 300.0])
def test_decays_weak_and_strong_keep_their_digits(decay):
    inputs = tuple(x.float() for x in drawn(150, decay=decay))
    assert_close(gated_attention_rule(*inputs, scale=SCALE), recurrent_float64(*inputs, scale=SCALE), 2e-6)


def test_a_step_that_forgets_everything_leaves_its_neighbours_exact():
    inputs = [x.float() for x in drawn(100, decay=0.01)]
    inputs[3][:, 40, :, ::2] = -5000.0
    assert_close(gated_attention_rule(*inputs, scale=SCALE), recurrent_float64(*inputs, scale=SCALE), 2e-6)


@pytest.mark.parametrize("tokens", [2, 3, 64, 70, 530])
@pytest.mark.parametrize("decay", [0.3, 30.0])
def test_gradients_are_those_of_the_recurrence(tokens, decay):
    inputs = drawn(tokens, decay=decay)
    found = []
    for rule in (gated_attention_rule, recurrent_float64):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, final = rule(*leaves, scale=SCALE)
        draw = torch.Generator().manual_seed(9)
        directions = [torch.randn(y.shape, generator=draw, dtype=torch.float64) for y in (out, final)]
        found.append(torch.autograd.grad([out, final], leaves, directions))
    assert_close(*found, 1e-11)


@pytest.mark.parametrize("tokens", [1, 100])
def test_one_decay_for_all_channels_of_a_head_is_a_decay_a_head(tokens):
    q, k, v, log_decay, state = drawn(tokens)
    a_head = log_decay[..., 0]
    wide = a_head.unsqueeze(-1).expand_as(q)
    got = gated_attention_rule(q, k, v, wide, state, scale=SCALE)
    assert_close(got, gated_attention_rule(q, k, v, a_head, state, scale=SCALE), 1e-12)


@pytest.mark.parametrize("tokens", [1, 100])
def test_a_delta_rule_whose_keys_never_meet_again_writes_plainly(tokens):
    # Keys of their own directions find nothing in the state, so that the delta term, with a beta of 1, is gone.
    draw = torch.Generator().manual_seed(3)
    keys = 128
    k = torch.eye(keys, dtype=torch.float64)[:tokens].expand(2, tokens, keys).unsqueeze(2)
    q, v = (torch.randn(2, tokens, 1, width, generator=draw, dtype=torch.float64) for width in (keys, VALUES))
    log_decay = -torch.rand(k.shape, generator=draw, dtype=torch.float64)
    beta = torch.ones(2, tokens, 1, dtype=torch.float64)
    delta = gated_delta_rule(q, k, v, log_decay, beta, None, scale=SCALE)
    assert_close(gated_attention_rule(q, k, v, log_decay, None, scale=SCALE), delta, 1e-11)


@pytest.mark.parametrize("tokens", [1, 2, 64, 100])
@pytest.mark.parametrize("pairs", ["needed", "dense"])
def test_torch_counts_in_the_twin_what_the_formula_says(tokens, pairs):
    inputs = drawn(tokens)
    with FlopCounterMode(display=False) as counter:
        got = gated_attention_twin(pairs)(*inputs, scale=SCALE)
    assert_close(got, recurrent_float64(*inputs, scale=SCALE), 1e-12)
    products = 2 * 2 * tokens * HEADS * 2 * KEYS * VALUES
    want = products if tokens == 1 else gated_attention_flops(2, tokens, HEADS, HEADS, KEYS, VALUES, pairs)
    assert counter.get_total_flops() == want


def test_the_counter_sees_the_operators_of_training():
    leaves = [x.requires_grad_() for x in drawn(100)]
    with FlopCounterMode(display=False) as counter:
        gated_attention_rule(*leaves, scale=SCALE)[0].sum().backward()
    assert counter.get_total_flops() == 3 * gated_attention_flops(2, 100, HEADS, HEADS, KEYS, VALUES)


def test_the_operator_keeps_torchs_rules_for_operators():
    inputs = [x.requires_grad_() for x in drawn(70)]
    torch.library.opcheck(torch.ops.archc.gated_attention.default, (*inputs, SCALE))


def test_a_batch_in_half_precision_keeps_its_state_in_float32():
    inputs = drawn(40, dtype=torch.bfloat16)
    out, final = gated_attention_rule(*inputs, scale=SCALE)
    assert (out.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    assert_close((out, final), recurrent_float64(*inputs, scale=SCALE), 1e-2)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_batch_in_slices_chains_states_and_gradients_of_its_rows(rows, monkeypatch):
    monkeypatch.setattr(gated_attention, "CPU_BUDGET", rows * HEADS * gated_attention.SLAB * gated_attention.CHUNK)
    inputs = [torch.cat((x, x.flip(0), x[:1]), 0) for x in drawn(600)]
    found = []
    for rule in (gated_attention_rule, recurrent_float64):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, final = rule(*leaves, scale=SCALE)
        found.append((out, final, *torch.autograd.grad(out.sum() + final.square().sum(), leaves)))
    assert_close(*found, 1e-11)
