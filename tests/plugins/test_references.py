"""Values that fast code and twin share are judged by formulas written out here, in float64 and one token at a time."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from archc.expansion import expand  # noqa: E402
from archc.ir.values import Body, Node, TensorType, Value  # noqa: E402
from archc.ops.linear_attention import LogDecay  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.torch_backend.build import build  # noqa: E402
from archc.torch_backend.context import Context  # noqa: E402
from archc.torch_backend.leaves.linear_attention import log_decay  # noqa: E402
from tests.plugins import reference  # noqa: E402
from tests.plugins.specs import clamped, gqa, kda, moe, swiglu, tiny  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH, EPS = 14, 1e-5
BARE = "{num_layers: 1, block: {kind: pre_norm, mixer_norm: false}, layers: %s, final_norm: false}"


def drawn(text, seed=0):
    """(spec, float64 model with large weights)."""
    spec = loads_spec(text)
    model = build(spec, device="cpu", dtype="float64", seed=seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(
                torch.randn(tensor.shape, generator=draw, dtype=torch.float64) * (1.5 * tensor.shape[-1] ** -0.5)
            )
    return spec, model


def weights_of(model, scope):
    """name -> weight below a scope, float64."""
    prefix = f"{scope}."
    return {k.removeprefix(prefix): v.double() for k, v in model.state_dict().items() if k.startswith(prefix)}


def windowed(window):
    return lambda query, key: query - window < key <= query


def chunked(chunk):
    return lambda query, key: key <= query and key // chunk == query // chunk


def causal(query, key):
    return key <= query


ATTENTION = {
    "plain": (gqa(), causal),
    "unit norm": (gqa("qk_norm: unit"), causal),
    "unit norm with temperature": (gqa("qk_norm: unit, query_temperature: {scale: 0.3, floor: 4}"), causal),
    "temperature": (gqa("query_temperature: {scale: 0.5, floor: 3}"), causal),
    "soft cap": (gqa("attn_logit_softcapping: 0.7"), causal),
    "sinks": (gqa("sink_logits: true"), causal),
    "gate and biases": (gqa("output_gate: true, qkv_bias: true, o_bias: true"), causal),
    "one key-value head": (gqa(kv_heads=1), causal),
    **{f"window {w}": (gqa(f"sliding_window: {w}"), windowed(w)) for w in (1, 2, 5, LENGTH, 99)},
    **{f"chunks of {c}": (gqa(f"attention_chunk_size: {c}"), chunked(c)) for c in (1, 4, 5, LENGTH, 99)},
    "sinks in a window": (gqa("sink_logits: true, sliding_window: 3"), windowed(3)),
    "soft cap in chunks": (gqa("attn_logit_softcapping: 0.7, attention_chunk_size: 4"), chunked(4)),
}


@pytest.mark.parametrize("theta", [None, 100.0], ids=["without rope", "with rope"])
@pytest.mark.parametrize(("mixer", "sees"), ATTENTION.values(), ids=ATTENTION)
def test_grouped_attention_is_the_formula(mixer, sees, theta):
    position = "none" if theta is None else f"{{kind: rope, theta: {theta}}}"
    spec, model = drawn(tiny(mixer, stack=BARE % "mixer", position=position, more="head: none"))
    ids = torch.arange(LENGTH).unsqueeze(0)
    with torch.no_grad():
        x = model.embed_tokens(ids)[0]
        got = model(ids)[0] - x
    kind = spec.mixers["mixer"].model_copy(update={"norm": spec.norm})
    want = reference.gqa(x, weights_of(model, "layers.0.mixer"), kind, theta=theta, sees=sees, hidden_norm_eps=EPS)
    # Tables and sink softmax are float32 by design.
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 * float(want.abs().max()))


SOFTMAX = "scoring_func: softmax, norm_topk_prob: true"
ROUTERS = {
    **{
        f"{function} {normed}": f"scoring_func: {function}, norm_topk_prob: {normed}"
        for function in ("softmax", "sigmoid", "sqrtsoftplus")
        for normed in ("true", "false")
    },
    "correction": "scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true",
    "bias": "scoring_func: softmax, norm_topk_prob: false, bias: true",
    "scaled": "scoring_func: sigmoid, norm_topk_prob: true, routed_scaling_factor: 2.5",
    "groups by max": "scoring_func: softmax, norm_topk_prob: false, n_group: 4, topk_group: 2, group_score: max",
    "groups by top2": "scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true, n_group: 4, topk_group: 2",
    "groups by top2, corrections below zero": "scoring_func: softmax, norm_topk_prob: true, correction_bias: true, n_group: 2, "
    "topk_group: 1",
}
EXPERTS = {
    **{f"router {name}": moe(router) for name, router in ROUTERS.items()},
    "weights on the input": moe(f"{SOFTMAX}, weight_on: input"),
    "relu2": moe(keys="expert: {activation: relu2}"),
    "gelu": moe(keys="expert: {activation: gelu}"),
    "gelu_tanh": moe(keys="expert: {activation: gelu_tanh}"),
    "latent": moe(keys="latent_size: 10"),
    "latent with a norm": moe(keys="latent_size: 10, latent_norm: true, num_shared_experts: 1"),
    "shared": moe(keys="num_shared_experts: 2"),
    "gated shared": moe(keys="num_shared_experts: 1, shared_gate: true, shared_intermediate_size: 20"),
    "clamped with biases": moe(
        keys="num_shared_experts: 1, expert: {kind: clamped_swiglu, limit: 0.4, alpha: 1.7, up_offset: 1.0, bias: true}"
    ),
    "clamped, weights on the input": moe(
        f"{SOFTMAX}, weight_on: input", "expert: {kind: clamped_swiglu, limit: 0.4, bias: true}"
    ),
}


@pytest.mark.parametrize("ffn", EXPERTS.values(), ids=EXPERTS)
def test_experts_are_the_formula(ffn):
    spec, model = drawn(
        tiny(ffn=ffn, stack="{num_layers: 1, block: pre_norm, layers: ffn, final_norm: false}", more="head: none")
    )
    ids = torch.arange(LENGTH).unsqueeze(0)
    with torch.no_grad():
        x = model.embed_tokens(ids)[0]
        normed = model.get_submodule("layers.0.ffn_norm")(x)
        got = model(ids)[0] - x
    weights = weights_of(model, "layers.0.ffn")
    want = torch.stack([reference.moe(row, weights, spec.ffns["ffn"], eps=EPS) for row in normed])
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 * float(want.abs().max()))


@pytest.mark.parametrize("floor", [None, -5.0, -0.5])
def test_the_log_decay_is_the_formula_and_never_below_its_floor(floor):
    op, kind = LogDecay(num_heads=2, floor=floor), TensorType((1, 3, 8))
    value = Value(Body("test"), 0, kind)
    node = Node(op, "forget_gate", (value,), (value,), op.params([kind]), {})
    leaf = log_decay(node, Context(torch.device("cpu"), torch.float32))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        leaf.A_log.copy_(torch.tensor([0.5, -1.0]))
        leaf.dt_bias.copy_(torch.randn(8, generator=draw))
    x = 4 * torch.randn(1, 3, 8, generator=draw)
    with torch.no_grad():
        got = leaf(x)
    for token in range(3):
        for channel in range(8):
            rate = math.exp(leaf.A_log[channel // 4].item())
            shifted = float(x[0, token, channel]) + leaf.dt_bias[channel].item()
            if floor is None:
                want = -rate * math.log1p(math.exp(shifted))
            else:
                want = floor / (1 + math.exp(-rate * shifted))
            assert float(got[0, token, channel]) == pytest.approx(want, rel=1e-5, abs=1e-7)
    assert float(got.max()) <= 0
    assert floor is None or float(got.min()) >= floor


def test_a_mixer_s_floor_and_kernel_reach_its_ops():
    graph = expand(loads_spec(tiny(kda("decay_floor: -2.5, conv_kernel: 3"))))
    ops = {path: node.op for path, node in graph.walk()}
    assert ops["layers.1.mixer.forget_gate"].floor == -2.5
    assert ops["layers.1.mixer.conv"].kernel == 3


@pytest.mark.parametrize(
    ("more", "formula"),
    [
        ("head: {logit_scale: 1/4}", lambda z: z / 4),
        ("head: {logit_scale: 1/sqrt(hidden_size)}", lambda z: z / 4),
        ("head: {final_logit_softcapping: 0.3}", lambda z: 0.3 * torch.tanh(z / 0.3)),
        ("head: {logit_scale: 2.0, final_logit_softcapping: 0.3}", lambda z: 0.3 * torch.tanh(2 * z / 0.3)),
    ],
)
def test_logits_are_scaled_then_capped(more, formula):
    ids = torch.arange(LENGTH).unsqueeze(0)
    with torch.no_grad():
        plain, got = (drawn(tiny(more=text))[1](ids) for text in ("", more))
    torch.testing.assert_close(got, formula(plain))


def test_multipliers_weigh_the_branch_and_the_stream():
    block = "{kind: pre_norm, residual_multiplier: 0.3, skip_multiplier: 0.5}"
    stack = f"{{num_layers: 1, block: {block}, layers: ffn, final_norm: false}}"
    embedding = "{hidden_size: 16, tie_word_embeddings: false, scale: sqrt(hidden_size)}"
    _, model = drawn(tiny(ffn=swiglu(), stack=stack, embedding=embedding, more="head: none"))
    ids = torch.arange(LENGTH).unsqueeze(0)
    with torch.no_grad():
        x = 4 * model.embed_tokens(ids)
        layer = model.get_submodule("layers.0")
        torch.testing.assert_close(model(ids), 0.5 * x + 0.3 * layer.ffn(layer.ffn_norm(x)))


def test_a_clamped_feed_forward_clamps_the_gate_from_above_and_up_on_both_sides():
    _, model = drawn(tiny(ffn=clamped("alpha: 1.5, up_offset: 1.0"), stack=BARE % "ffn", more="head: none"))
    ffn = model.get_submodule("layers.0.ffn")
    x = 9 * torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        gate, up = ffn.gate_proj(x), ffn.up_proj(x)
        assert float(gate.min()) < -0.7 < 0.7 < float(gate.max())
        gate, up = gate.clamp(max=0.7), up.clamp(-0.7, 0.7)
        torch.testing.assert_close(ffn(x), ffn.down_proj(gate * torch.sigmoid(1.5 * gate) * (up + 1)))


def test_an_offset_norm_multiplies_by_one_more_than_its_weight():
    _, model = drawn(tiny(norm="{kind: rms_norm, eps: 0.25, weight_offset: 1.0}"))
    x = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        want = x / torch.sqrt(x.square().mean(-1, keepdim=True) + 0.25) * (1 + model.norm.weight)
        torch.testing.assert_close(model.norm(x), want)
