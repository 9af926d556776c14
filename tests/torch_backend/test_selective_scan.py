"""The selective scan of Mamba-1: the operator against its definition in float64, values and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from archc.torch_backend.operators import selective_scan as fast  # noqa: E402
from archc.torch_backend.operators.selective_scan import selective_scan_flops, selective_scan_rule  # noqa: E402
from archc.torch_backend.twins.selective_scan import selective_scan_twin  # noqa: E402

pytestmark = pytest.mark.torch

CHANNELS, STATE = 6, 3
LENGTHS = (1, 2, 31, 32, 33, 70)


def drawn(tokens, *, step=0.5, dtype=torch.float64, seed=0):
    """(x, dt, a, b, c, state)."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((2, tokens, CHANNELS), (2, tokens, STATE), (2, tokens, STATE), (2, CHANNELS, STATE))
    x, b, c, state = (torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)
    dt = (step * torch.rand(2, tokens, CHANNELS, generator=draw, dtype=torch.float64)).to(dtype)
    a = (-4 * torch.rand(CHANNELS, STATE, generator=draw, dtype=torch.float64)).to(dtype)
    return x, dt, a, b, c, state


def assert_close(got, want, tolerance):
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=tolerance * float(other.abs().max()))


@pytest.fixture(params=[1 << 14, 8], ids=["all channels together", "a channel or two at a time"])
def budget(request, monkeypatch):
    monkeypatch.setattr(fast, "CPU_BUDGET", request.param)


@pytest.mark.usefixtures("budget")
@pytest.mark.parametrize("step", [0.01, 0.5, 50.0])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_operator_is_the_recurrence(tokens, step):
    inputs = drawn(tokens, step=step)
    assert_close(selective_scan_rule(*inputs), selective_scan_twin(*inputs), 1e-12)
    floats = tuple(tensor.float() for tensor in inputs)
    assert_close(selective_scan_rule(*floats), selective_scan_twin(*floats), 2e-6)


@pytest.mark.usefixtures("budget")
@pytest.mark.parametrize("tokens", LENGTHS)
def test_gradients_are_those_of_the_recurrence(tokens):
    found = []
    for rule in (selective_scan_rule, selective_scan_twin):
        leaves = [tensor.clone().requires_grad_() for tensor in drawn(tokens)]
        out, final = rule(*leaves)
        draw = torch.Generator().manual_seed(9)
        directions = [torch.randn(y.shape, generator=draw, dtype=torch.float64) for y in (out, final)]
        found.append(torch.autograd.grad([out, final], leaves, directions))
    assert_close(*found, 1e-12)


def test_a_step_of_zero_changes_no_state():
    x, dt, a, b, c, state = drawn(40)
    dt[:, 20:] = 0
    _, final = selective_scan_rule(x, dt, a, b, c, state)
    _, shorter = selective_scan_rule(x[:, :20], dt[:, :20], a, b[:, :20], c[:, :20], state)
    assert torch.equal(final, shorter)


def test_torch_counts_in_the_twin_and_in_the_operator_what_the_formula_says():
    with FlopCounterMode(display=False) as counter:
        selective_scan_twin(*drawn(40))
    assert counter.get_total_flops() == selective_scan_flops(2, 40, CHANNELS, STATE)
    leaves = [tensor.requires_grad_() for tensor in drawn(40)]
    with FlopCounterMode(display=False) as counter:
        selective_scan_rule(*leaves)[0].sum().backward()
    assert counter.get_total_flops() == 3 * selective_scan_flops(2, 40, CHANNELS, STATE)


def test_the_operator_keeps_torchs_rules_for_operators():
    torch.library.opcheck(torch.ops.archc.selective_scan.default, [tensor.requires_grad_() for tensor in drawn(40)])
