"""Gated DeltaNet: the contract, the formula written out, and what its heads may be."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from archc.errors import SpecError  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from tests.plugins.specs import gated_deltanet, gqa, tiny  # noqa: E402
from tests.plugins.test_references import BARE, drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH, EPS = 14, 1e-5
MIXERS = {
    "two heads of values a key": gated_deltanet(),
    "three heads of values a key": gated_deltanet(key_heads=1, value_heads=3),
    "as many heads of keys as of values": gated_deltanet(key_heads=3, value_heads=3),
    "betas up to 2": gated_deltanet("allow_neg_eigval: true"),
    "a kernel of 2": gated_deltanet("conv_kernel: 2"),
    "all": gated_deltanet("conv_kernel: 3, allow_neg_eigval: true", key_heads=1, value_heads=2),
}
HYBRID = {
    "stack": "{num_layers: 4, block: pre_norm, mixer: mixer*3 attn, ffn: ffn}",
    "norm": "{kind: rms_norm, eps: 1.0e-5, weight_offset: 1.0}",
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_a_gated_deltanet_keeps_the_contract(contract, mixer):
    contract(tiny(mixer))


def test_a_hybrid_with_gated_attention_keeps_the_contract(contract):
    attention = gqa(
        "qk_norm: head, output_gate: true, position: {kind: rope, theta: 100.0, partial_rotary_factor: 0.25}"
    )
    contract(tiny(gated_deltanet(), **HYBRID).replace("ffns:", f"  attn: {attention}\nffns:"))


def test_a_cache_of_half_precision_loses_no_more_than_it_must(contract):
    contract(tiny(gated_deltanet(), more="cache: {policy: full, dtype: float16}"), tolerance=1e-2)


def written_out(x, weights, kind):
    """(seq, hidden) -> same, one head and one token at a time, in the words of the paper."""
    heads, keys, values = kind.num_value_heads, kind.key_head_dim, kind.value_head_dim
    silu = torch.nn.functional.silu
    streams = {}
    for name in "qkv":
        y, taps = x @ weights[f"{name}_proj.weight"].T, weights[f"conv.{name}_conv1d.weight"][:, 0]
        rows = [
            sum(taps[:, -1 - back] * y[t - back] for back in range(min(t + 1, kind.conv_kernel))) for t in range(len(y))
        ]
        streams[name] = silu(torch.stack(rows))
    outs = []
    for head in range(heads):
        key_head = head // (heads // kind.num_key_heads)
        state, rows = x.new_zeros(values, keys), []
        for t, token in enumerate(x):
            q, k = (streams[n][t, key_head * keys : (key_head + 1) * keys] for n in "qk")
            q, k = (r / torch.sqrt(r.square().sum() + 1e-6) for r in (q, k))
            v = streams["v"][t, head * values : (head + 1) * values]
            shifted = token @ weights["a_proj.weight"][head] + weights["forget_gate.dt_bias"][head]
            alpha = torch.exp(-weights["forget_gate.A_log"][head].exp() * torch.log1p(shifted.exp()))
            beta = torch.sigmoid(token @ weights["b_proj.weight"][head]) * (2 if kind.allow_neg_eigval else 1)
            # S (alpha (I - beta k k^T)) + beta v k^T, equation 10 of the paper
            state = alpha * state @ (torch.eye(keys, dtype=x.dtype) - beta * torch.outer(k, k)) + beta * torch.outer(
                v, k
            )
            o = state @ q / keys**0.5
            z = token @ weights["g_proj.weight"][head * values : (head + 1) * values].T
            rows.append(o / torch.sqrt(o.square().mean() + EPS) * weights["o_norm.weight"] * silu(z))
        outs.append(torch.stack(rows))
    return torch.cat(outs, -1) @ weights["o_proj.weight"].T


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
        # The decay is float32 by design.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * float(other.detach().abs().max()))


def test_the_state_is_one_matrix_a_head_of_values_and_one_convolution_over_all_streams():
    graph = expand(loads_spec(tiny(gated_deltanet(key_heads=2, value_heads=6))))
    shapes = {name: [str(dim) for dim in state.used] for name, state in graph.states().items() if "layers.0" in name}
    assert shapes == {
        "layers.0.mixer.conv.conv_state": ["batch", "3", str(2 * 2 * 8 + 6 * 6)],
        "layers.0.mixer.delta_rule.recurrent_state": ["batch", "6", "8", "6"],
    }


def test_the_norm_of_the_output_has_a_plain_weight_whatever_the_specs_norm_adds():
    graph = expand(loads_spec(tiny(gated_deltanet(), norm=HYBRID["norm"])))
    ops = {path: node.op for path, node in graph.walk()}
    assert ops["layers.0.mixer_norm"].weight_offset == 1.0
    assert (ops["layers.0.mixer.o_norm"].eps, ops["layers.0.mixer.o_norm"].function) == (1e-5, "silu")


def test_heads_of_values_are_a_multiple_of_those_of_keys():
    with pytest.raises(SpecError, match=r"num_key_heads: should divide num_value_heads, 4 \(found 3\)"):
        loads_spec(tiny(gated_deltanet(key_heads=3)))
