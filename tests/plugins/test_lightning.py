"""Lightning attention: the contract, the formula written out, its decays, and what its state is kept in."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from archc.expansion import expand  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.torch_backend.build import build, new_cache  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.plugins.specs import gqa, tiny  # noqa: E402
from tests.plugins.test_references import BARE, drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH = 14


def lightning(keys="", *, heads=2, head_dim=8):
    more = f", {keys}" if keys else ""
    return f"{{kind: lightning, num_heads: {heads}, head_dim: {head_dim}{more}}}"


MIXERS = {
    "two heads": lightning(),
    "one head": lightning(heads=1),
    "heads that are no power of two": lightning(heads=3, head_dim=6),
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_lightning_keeps_the_contract(contract, mixer):
    contract(tiny(mixer))


def test_a_hybrid_under_a_normed_stream_keeps_the_contract(contract):
    attention = gqa("position: {kind: rope, theta: 100.0}")
    block = "{kind: normed_residual, skip_multiplier: 1.2, residual_multiplier: 0.8, ffn_skip_multiplier: 1.1}"
    stack = f"{{num_layers: 4, block: {block}, mixer: mixer*3 attn, ffn: ffn}}"
    contract(tiny(lightning(), stack=stack).replace("ffns:", f"  attn: {attention}\nffns:"))


def test_a_state_in_half_precision_loses_no_more_than_it_must(contract):
    contract(tiny(lightning(), more="cache: {policy: full, state_dtype: bfloat16}"), tolerance=5e-2)


def written_out(x, weights, kind, layer, layers):
    """(seq, hidden) -> same, one head and one token at a time."""
    heads, d = kind.num_heads, kind.head_dim
    silu = torch.nn.functional.silu
    q, k, v = (silu(x @ weights[f"{name}_proj.weight"].T) for name in "qkv")
    outs = []
    for head in range(heads):
        rate = 2 ** (-8 * (head + 1) / heads) * (1 - layer / (layers - 1 + 1e-5) + 1e-5)
        state, rows = x.new_zeros(d, d), []
        for t in range(len(x)):
            query, key, value = (y[t, head * d : (head + 1) * d] for y in (q, k, v))
            state = math.exp(-rate) * state + torch.outer(key, value)
            rows.append(query @ state)
        outs.append(torch.stack(rows))
    o = torch.cat(outs, -1)
    o = o / torch.sqrt(o.square().mean(-1, keepdim=True) + 1e-6) * weights["o_norm.weight"]
    return (o * torch.sigmoid(x @ weights["g_proj.weight"].T)) @ weights["o_proj.weight"].T


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
@pytest.mark.parametrize("layer", [0, 2])
def test_the_layer_equals_the_formula_in_values_and_gradients(mixer, layer):
    stack = (BARE % "mixer").replace("num_layers: 1", "num_layers: 3")
    spec, model = drawn(tiny(mixer, stack=stack, more="head: none"))
    part = model.get_submodule(f"layers.{layer}").mixer
    x = torch.randn(LENGTH, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()
    got = part(x.unsqueeze(0))[0]
    want = written_out(x, weights_of(model, f"layers.{layer}.mixer"), spec.mixers["mixer"], layer, 3)
    d_out = torch.randn(got.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradients = [torch.autograd.grad(y, x, d_out)[0] for y in (got, want)]
    for one, other in ((got, want), gradients):
        # Decays are float32 by design.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * float(other.detach().abs().max()))


def test_each_layer_has_decays_of_its_own_and_the_last_forgets_least():
    stack = "{num_layers: 4, block: pre_norm, mixer: mixer, ffn: ffn}"
    graph = expand(loads_spec(tiny(lightning(heads=2), stack=stack)))
    decays = [node.op.values for _, node in graph.walk() if node.op.op_name == "fixed_decay"]
    assert decays[0] == pytest.approx((-(2**-4) * (1 + 1e-5), -(2**-8) * (1 + 1e-5)))
    assert [values[0] for values in decays] == sorted(values[0] for values in decays)
    assert all(value < 0 for values in decays for value in values)


def test_the_norm_of_the_output_has_its_own_eps_whatever_the_specs():
    graph = expand(loads_spec(tiny(lightning(), norm="{kind: rms_norm, eps: 0.1, weight_offset: 1.0}")))
    ops = {path: node.op for path, node in graph.walk()}
    assert (ops["layers.0.mixer.o_norm"].eps, ops["layers.0.mixer.o_norm"].weight_offset) == (1e-6, 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_is_one_matrix_a_head_in_the_dtype_that_the_cache_policy_states(dtype):
    text = tiny(lightning(heads=3, head_dim=6), more=f"cache: {{policy: full, state_dtype: {dtype}}}")
    model = build(loads_spec(text), device="cpu", seed=0)
    cache = new_cache(model, batch=2, max_model_len=8)
    state = cache["layers.0.mixer.lightning.recurrent_state"]
    assert (tuple(state.shape), state.dtype) == ((2, 3, 6, 6), getattr(torch, dtype))
    with torch.no_grad():
        model(torch.zeros(2, 4, dtype=torch.int64), Step.at(0, 4), cache)
    assert bool(state.float().abs().sum() > 0)


def test_a_positive_log_decay_is_no_decay():
    from archc.errors import GraphError
    from archc.ir.size import BATCH, SEQ
    from archc.ir.values import TensorType
    from archc.ops.linear_attention import FixedDecay

    with pytest.raises(GraphError, match=r"0\.5 is no log of a decay"):
        FixedDecay(values=(-1.0, 0.5)).infer([TensorType((BATCH, SEQ, 4))])
