"""Mamba-1: the contract, the formula written out, and its states."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from archc.expansion import expand  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from tests.plugins.specs import gqa, tiny  # noqa: E402
from tests.plugins.test_references import BARE, drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH, EPS, HIDDEN = 14, 1e-5, 16


def mamba1(keys="", *, width=24, state=4, rank=3):
    more = f", {keys}" if keys else ""
    return f"{{kind: mamba1, intermediate_size: {width}, state_size: {state}, dt_rank: {rank}{more}}}"


MIXERS = {
    "plain": mamba1(),
    "norms inside": mamba1("inner_norm: true"),
    "biases": mamba1("bias: true"),
    "no bias on the convolution": mamba1("conv_bias: false"),
    "a kernel of 2": mamba1("conv_kernel: 2"),
    "a state of one number": mamba1(state=1, rank=1),
    "all": mamba1("inner_norm: true, bias: true, conv_bias: false, conv_kernel: 3", width=10, state=5),
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_mamba1_keeps_the_contract(contract, mixer):
    contract(tiny(mixer))


def test_a_hybrid_with_attention_keeps_the_contract(contract):
    stack = "{num_layers: 4, block: pre_norm, mixer: mixer*2 attn mixer, ffn: ffn}"
    contract(tiny(mamba1("inner_norm: true"), stack=stack).replace("ffns:", f"  attn: {gqa()}\nffns:"))


def test_a_cache_of_half_precision_loses_no_more_than_it_must(contract):
    contract(tiny(mamba1(), more="cache: {policy: full, dtype: float16}"), tolerance=1e-2)


def written_out(x, weights, kind):
    """(seq, hidden) -> same, one channel and one token at a time, in the words of the paper."""
    silu, softplus = torch.nn.functional.silu, torch.nn.functional.softplus

    def project(name, rows):
        y = rows @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    def normed(name, rows):
        if not kind.inner_norm:
            return rows
        return rows / torch.sqrt(rows.square().mean(-1, keepdim=True) + EPS) * weights[f"{name}_norm.weight"]

    h, taps = project("x_proj", x), weights["conv.x_conv1d.weight"][:, 0]
    rows = [
        sum(taps[:, -1 - back] * h[t - back] for back in range(min(t + 1, kind.conv_kernel))) for t in range(len(h))
    ]
    h = silu(torch.stack(rows) + weights.get("conv.x_conv1d.bias", 0))
    low, b, c = (normed(name, project(f"{part}_proj", h)) for name, part in (("dt", "dt_a"), ("b", "b"), ("c", "c")))
    dt = softplus(project("dt_b_proj", low) + weights["selective_scan.dt_bias"])
    rates, skip = -weights["selective_scan.A_log"].exp(), weights["selective_scan.D"]
    channels = []
    for i in range(kind.intermediate_size):
        state, outs = x.new_zeros(kind.state_size), []
        for t in range(len(x)):
            state = torch.exp(dt[t, i] * rates[i]) * state + dt[t, i] * b[t] * h[t, i]
            outs.append(c[t] @ state + skip[i] * h[t, i])
        channels.append(torch.stack(outs))
    return project("out_proj", torch.stack(channels, -1) * silu(project("gate_proj", x)))


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_the_layer_equals_the_papers_formula_in_values_and_gradients(mixer):
    spec, model = drawn(tiny(mixer, stack=BARE % "mixer", more="head: none"))
    layer = model.get_submodule("layers.0").mixer
    x = torch.randn(LENGTH, HIDDEN, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()
    got = layer(x.unsqueeze(0))[0]
    want = written_out(x, weights_of(model, "layers.0.mixer"), spec.mixers["mixer"])
    d_out = torch.randn(got.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradients = [torch.autograd.grad(y, x, d_out)[0] for y in (got, want)]
    for one, other in ((got, want), gradients):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * float(other.detach().abs().max()))


def test_the_states_are_a_few_numbers_a_channel_and_the_convolutions_columns():
    graph = expand(loads_spec(tiny(mamba1(width=24, state=4))))
    shapes = {name: [str(dim) for dim in state.used] for name, state in graph.states().items() if "layers.0" in name}
    assert shapes == {
        "layers.0.mixer.conv.conv_state": ["batch", "3", "24"],
        "layers.0.mixer.selective_scan.recurrent_state": ["batch", "24", "4"],
    }
