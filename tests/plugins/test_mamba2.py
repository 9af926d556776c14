"""Mamba-2: the contract, the formula written out, and what its groups and steps may be."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from archc.errors import SpecError  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from tests.plugins.specs import gqa, mamba2, tiny  # noqa: E402
from tests.plugins.test_references import BARE, drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH, EPS = 14, 1e-5
MIXERS = {
    "two heads a group": mamba2(),
    "one group": mamba2(heads=3, groups=1),
    "a group a head": mamba2(heads=3, groups=3),
    "steps within limits": mamba2("time_step_limit: [0.01, 0.05]"),
    "biases on the projections": mamba2("bias: true"),
    "no biases at all": mamba2("conv_bias: false"),
    "a kernel of 2": mamba2("conv_kernel: 2"),
    "all": mamba2("conv_kernel: 3, bias: true, conv_bias: false, time_step_limit: [0.02, 0.04]", heads=6, groups=3),
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_a_mamba2_keeps_the_contract(contract, mixer):
    contract(tiny(mixer))


def test_a_stack_of_mixers_alone_keeps_the_contract(contract):
    contract(tiny(mamba2(), position="none", stack="{num_layers: 2, block: pre_norm, mixer: mixer, ffn: none}"))


def test_half_layers_beside_attention_keep_the_contract(contract):
    half_layers = "{num_layers: 6, block: pre_norm, layers: mixer ffn attn ffn mixer ffn}"
    contract(tiny(mamba2(), stack=half_layers).replace("ffns:", f"  attn: {gqa()}\nffns:"))


def test_a_cache_of_half_precision_loses_no_more_than_it_must(contract):
    contract(tiny(mamba2(), more="cache: {policy: full, dtype: float16}"), tolerance=1e-2)


def written_out(x, weights, kind):
    """(seq, hidden) -> same, one head and one token at a time, in the words of the paper."""
    heads, head_dim, states, groups = kind.num_heads, kind.head_dim, kind.state_size, kind.n_groups
    silu = torch.nn.functional.silu

    def projected(name):
        return x @ weights[f"{name}_proj.weight"].T + weights.get(f"{name}_proj.bias", 0)

    streams = {}
    for name in "xbc":
        y, taps = projected(name), weights[f"conv.{name}_conv1d.weight"][:, 0]
        rows = [
            sum(taps[:, -1 - back] * y[t - back] for back in range(min(t + 1, kind.conv_kernel))) for t in range(len(y))
        ]
        streams[name] = silu(torch.stack(rows) + weights.get(f"conv.{name}_conv1d.bias", 0))
    steps = torch.log1p((projected("dt") + weights["state_space.dt_bias"]).exp())
    if kind.time_step_limit is not None:
        low, high = kind.time_step_limit
        steps = torch.where(steps < low, torch.full_like(steps, low), torch.where(steps > high, high, steps))
    outs = []
    for head in range(heads):
        group = head // (heads // groups)
        state, rows = x.new_zeros(head_dim, states), []
        rate = weights["state_space.A_log"][head].exp()
        for t in range(len(x)):
            b, c = (streams[n][t, group * states : (group + 1) * states] for n in "bc")
            u, step = streams["x"][t, head * head_dim : (head + 1) * head_dim], steps[t, head]
            state = torch.exp(-rate * step) * state + torch.outer(step * u, b)
            rows.append(state @ c + weights["state_space.D"][head] * u)
        outs.append(torch.stack(rows))
    gated = torch.cat(outs, -1) * silu(projected("gate"))
    slices = gated.unflatten(-1, (groups, -1))
    normed = (slices / torch.sqrt(slices.square().mean(-1, keepdim=True) + EPS)).flatten(-2) * weights["o_norm.weight"]
    return normed @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0)


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_the_layer_equals_the_papers_formula_in_values_and_gradients(mixer):
    spec, model = drawn(tiny(mixer, stack=BARE % "mixer", more="head: none"))
    layer = model.get_submodule("layers.0").mixer
    x = torch.randn(LENGTH, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()
    got = layer(x.unsqueeze(0))[0]
    want = written_out(x, weights_of(model, "layers.0.mixer"), spec.mixers["mixer"])
    d_out = torch.randn(got.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradients = [torch.autograd.grad(y, x, d_out)[0] for y in (got, want)]
    for one, other in ((got, want), gradients):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9 * float(other.detach().abs().max()))


def test_the_state_is_one_matrix_a_head_and_one_convolution_over_x_b_and_c():
    graph = expand(loads_spec(tiny(mamba2(heads=4, groups=2))))
    shapes = {name: [str(dim) for dim in state.used] for name, state in graph.states().items() if "layers.0" in name}
    assert shapes == {
        "layers.0.mixer.conv.conv_state": ["batch", "3", str(4 * 6 + 2 * 2 * 8)],
        "layers.0.mixer.state_space.recurrent_state": ["batch", "4", "8", "6"],
    }


def test_decays_steps_and_skips_stay_in_float32_whatever_the_models_dtype():
    graph = expand(loads_spec(tiny(mamba2())))
    kept = {name.rsplit(".", 1)[1] for name, param in graph.params().items() if param.dtype == "float32"}
    assert kept == {"A_log", "dt_bias", "D"}


def test_heads_are_a_multiple_of_the_groups():
    with pytest.raises(SpecError, match=r"n_groups: should divide num_heads, 4 \(found 3\)"):
        loads_spec(tiny(mamba2(groups=3)))


def test_the_highest_step_is_not_below_the_lowest():
    with pytest.raises(SpecError, match=r"time_step_limit: should be \[lowest, highest\] \(found \[0.5, 0.1\]\)"):
        loads_spec(tiny(mamba2("time_step_limit: [0.5, 0.1]")))


def test_a_policy_that_forgets_rows_is_refused_where_there_are_none():
    with pytest.raises(SpecError, match="keeps a state and no row a token"):
        loads_spec(tiny(mamba2(), more="cache: {policy: window, window: 4}"))
