"""Linear attention, Performers, RetNet and GLA: their papers' formulas written out, and what they should be equal to."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from archc.errors import SpecError  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.ir.size import BATCH, SEQ  # noqa: E402
from archc.ir.values import Body, Node, TensorType, Value  # noqa: E402
from archc.ops.linear_attention import LinearAttention  # noqa: E402
from archc.ops.random_features import MAX_EXPONENT, RandomFeatures, directions  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.torch_backend.build import build, new_cache  # noqa: E402
from archc.torch_backend.context import Context  # noqa: E402
from archc.torch_backend.leaves.linear_attention import linear_attention  # noqa: E402
from archc.torch_backend.leaves.random_features import key_features, query_features  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.plugins.specs import tiny  # noqa: E402
from tests.plugins.test_references import BARE, drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH, HEADS, WIDTH = 14, 2, 8

LINEAR = "{kind: linear, num_heads: 2, head_dim: 8%s}"
PERFORMER = "{kind: performer, num_heads: 2, head_dim: 8, num_features: %d, seed: %d%s}"
RETNET = "{kind: retnet, num_heads: 2, key_head_dim: 4, value_head_dim: 8}"
GLA = "{kind: gla, num_heads: 2, key_head_dim: 4, value_head_dim: 8, gate_rank: 3, gate_normalizer: 4.0}"

MIXERS = {
    "linear": LINEAR % "",
    "linear with biases": LINEAR % ", qkv_bias: true, o_bias: true, eps: 1.0e-3",
    "performer": PERFORMER % (12, 0, ""),
    "performer with fewer features than channels": PERFORMER % (5, 3, ", softmax_scale: 0.2, qkv_bias: true"),
    "retnet": RETNET,
    "retnet with one head": "{kind: retnet, num_heads: 1, key_head_dim: 8, value_head_dim: 4}",
    "gla": GLA,
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_each_kind_keeps_the_contract(contract, mixer):
    contract(tiny(mixer))


@pytest.mark.parametrize("mixer", [LINEAR % "", PERFORMER % (12, 0, ""), RETNET, GLA])
def test_a_state_in_half_precision_loses_no_more_than_it_must(contract, mixer):
    contract(tiny(mixer, more="cache: {policy: full, state_dtype: bfloat16}"), tolerance=5e-2)


FIRST_DIRECTIONS = [
    0.21103015524238705,
    -0.12810084726388027,
    -2.1666010941324707,
    -1.1645788938440875,
    -1.271441894750708,
    -0.038257379736418476,
]
"""Of seed 0, two of three numbers: exported files hold them, so they may never change."""


def split(x, heads=HEADS):
    """(seq, heads x d) -> (heads, seq, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)


def joined(x):
    return x.transpose(0, 1).flatten(1)


def linear_written_out(x, w):
    """The quadratic form: a lower triangle of f(q_i).f(k_j), each row divided by its sum."""
    q, k, v = (split(x @ w[f"{n}_proj.weight"].T) for n in "qkv")
    scores = ((functional.elu(q) + 1) @ (functional.elu(k) + 1).mT).tril()
    return joined(scores / (scores.sum(-1, keepdim=True) + 1e-6) @ v) @ w["o_proj.weight"].T


def performer_written_out(x, w, count=12, seed=0):
    """FAVOR+ as its paper has it, with both factors e^(-|.|^2/2), and the quadratic form of it."""
    q, k, v = (split(x @ w[f"{n}_proj.weight"].T) for n in "qkv")
    rows = torch.tensor(directions(count, WIDTH, seed), dtype=torch.float64)

    def features(y):
        y = y * WIDTH**-0.25
        return (y @ rows.T - y.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(count)

    scores = (features(q) @ features(k).mT).tril()
    return joined(scores / scores.sum(-1, keepdim=True) @ v) @ w["o_proj.weight"].T


def turned(x, theta):
    """x (heads, seq, d) times e^(i n theta^(-2m/d)), channels 2m and 2m + 1 being one complex number at position n."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    rates = theta ** (-torch.arange(pairs.shape[-1], dtype=torch.float64) / pairs.shape[-1])
    angles = torch.arange(x.shape[1], dtype=torch.float64).unsqueeze(-1) * rates
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def retnet_written_out(x, w, theta=None):
    """The parallel form as it is published: the decay matrix and the rows of scores normalised, then the norm of each head."""
    q, k, v, gate = (split(x @ w[f"{n}_proj.weight"].T) for n in "qkvg")
    if theta is not None:
        q, k = turned(q, theta), turned(k, theta)
    i, j = torch.arange(len(x)).unsqueeze(-1), torch.arange(len(x))
    decay = torch.stack([(1 - 2.0 ** (-5 - h)) ** (i - j).double() for h in range(HEADS)]).tril()
    decay = decay / decay.sum(-1, keepdim=True).sqrt()
    scores = q @ (k * k.shape[-1] ** -0.5).mT * decay
    scores = scores / scores.detach().sum(-1, keepdim=True).abs().clamp(min=1)
    o = scores @ v
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return (functional.silu(joined(gate)) * joined(o)) @ w["o_proj.weight"].T


def gla_written_out(x, w):
    """The recurrence, a head and a token at a time."""
    q, k, v, gate = (split(x @ w[f"{n}_proj.weight"].T) for n in "qkvg")
    f = x @ w["f_a_proj.weight"].T @ w["f_b_proj.weight"].T + w["f_b_proj.bias"]
    decay, outs = split(torch.sigmoid(f) ** (1 / 4.0)), []
    for head in range(HEADS):
        state, rows = x.new_zeros(q.shape[-1], v.shape[-1]), []
        for t in range(len(x)):
            state = decay[head, t].unsqueeze(-1) * state + torch.outer(k[head, t], v[head, t])
            rows.append(q[head, t] * q.shape[-1] ** -0.5 @ state)
        outs.append(torch.stack(rows))
    o = torch.stack(outs)
    o = joined(o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["o_norm.weight"])
    return (o * functional.silu(joined(gate))) @ w["o_proj.weight"].T


WRITTEN_OUT = {
    "linear": (LINEAR % "", linear_written_out),
    "performer": (PERFORMER % (12, 0, ""), performer_written_out),
    "gla": (GLA, gla_written_out),
}


@pytest.mark.parametrize(("mixer", "written_out"), WRITTEN_OUT.values(), ids=WRITTEN_OUT)
def test_the_layer_equals_its_formula_in_values_and_gradients(mixer, written_out):
    _, model = drawn(tiny(mixer, stack=BARE % "mixer", position="none", more="head: none"))
    part = model.get_submodule("layers.0").mixer
    x = torch.randn(LENGTH, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()
    got, want = part(x.unsqueeze(0))[0], written_out(x, weights_of(model, "layers.0.mixer"))
    d_out = torch.randn(got.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradients = [torch.autograd.grad(y, x, d_out)[0] for y in (got, want)]
    for one, other in ((got, want), gradients):
        # Features and decays are float32 by design.
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6 * float(other.detach().abs().max()))


def test_retention_is_its_published_parallel_form_whose_rescaling_the_norm_takes_away():
    _, model = drawn(tiny(RETNET, stack=BARE % "mixer", position="none", more="head: none"))
    part = model.get_submodule("layers.0").mixer
    # Large enough that what the eps of the norm adds does not see how scores were scaled.
    x = 1e3 * torch.randn(LENGTH, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    with torch.no_grad():
        got, want = part(x.unsqueeze(0))[0], retnet_written_out(x, weights_of(model, "layers.0.mixer"))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))


def test_queries_and_keys_of_retnet_turn_as_complex_numbers_under_an_interleaved_rope():
    rope = "{kind: rope, theta: 100.0, interleaved: true}"
    _, model = drawn(tiny(RETNET, stack=BARE % "mixer", position=rope, more="head: none"))
    with torch.no_grad():
        x = model.get_submodule("embed_tokens").weight.mul_(1e3)[:LENGTH]
        got = model(torch.arange(LENGTH).unsqueeze(0))[0] - x
        want = retnet_written_out(x, weights_of(model, "layers.0.mixer"), theta=100.0)
    # Sines and cosines are float32 by design.
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))


def test_the_first_head_of_retnet_forgets_a_thirty_second_a_token():
    graph = expand(loads_spec(tiny("{kind: retnet, num_heads: 8, key_head_dim: 4, value_head_dim: 8}")))
    (values, *others) = [node.op.values for _, node in graph.walk() if node.op.op_name == "fixed_decay"]
    assert [math.exp(value) for value in values] == pytest.approx([1 - 2.0**-power for power in range(5, 13)])
    assert all(other == values for other in others)


@pytest.mark.parametrize("count", [4, 8, 20])
def test_directions_are_orthogonal_and_as_long_as_normal_ones(count):
    rows = torch.tensor(directions(count, 8, 7), dtype=torch.float64)
    for start in range(0, count, 8):
        block = functional.normalize(rows[start : start + 8])
        torch.testing.assert_close(block @ block.T, torch.eye(len(block), dtype=torch.float64), rtol=0, atol=1e-12)
    many = torch.tensor(directions(4000, 8, 7), dtype=torch.float64)
    assert float(many.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(many.square().sum(-1).mean()) == pytest.approx(8.0, rel=0.03)


def test_a_seed_gives_the_same_directions_for_ever():
    assert directions(2, 3, 0) == directions(2, 3, 0)
    assert directions(2, 3, 0) != directions(2, 3, 1)
    found = [number for row in directions(2, 3, 0) for number in row]
    assert found == pytest.approx(FIRST_DIRECTIONS, abs=1e-12)


def features(x, count, seed, of):
    words = {"head_dim": x.shape[-1], "num_features": count, "seed": seed, "scale": x.shape[-1] ** -0.5, "exact": True}
    return query_features(x, **words) if of == "query" else key_features(x, **words, shift=0.0)


def test_the_error_of_a_performer_falls_with_its_features_towards_softmax_attention():
    draw = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 40, 16, generator=draw, dtype=torch.float64) for _ in range(3))
    # The variance of a product grows as e^(|q + k|^2), so only short ones show the law at few features.
    q, k = q / 2, k / 2
    want = functional.scaled_dot_product_attention(q, k, v)

    def error(count):
        total = 0.0
        for seed in range(8):
            weights = features(q, count, seed, "query").double() @ features(k, count, seed, "key").double().mT
            total += float((weights / weights.sum(-1, keepdim=True) @ v - want).square().mean())
        return math.sqrt(total / 8)

    errors = [error(count) for count in (16, 64, 256, 1024)]
    # Four times as many features halve it, or nearly.
    assert all(0.35 < later / earlier < 0.75 for earlier, later in itertools.pairwise(errors)), errors
    assert errors[-1] < 0.02


def test_products_of_features_are_e_to_the_score_on_average():
    draw = torch.Generator().manual_seed(2)
    q, k = (0.4 * torch.randn(1, 6, 8, generator=draw, dtype=torch.float64) for _ in range(2))
    count = 4096
    rows = torch.tensor(directions(count, 8, 1), dtype=torch.float64)
    y = q * 8**-0.25
    whole = (y @ rows.T).exp().sum(-1, keepdim=True) * (-y.square().sum(-1, keepdim=True) / 2).exp()
    products = (features(q, count, 1, "query").double() * whole) @ features(k, count, 1, "key").double().mT / count
    torch.testing.assert_close(products, (q @ k.mT * 8**-0.5).exp(), rtol=0.1, atol=0)


def test_no_key_is_so_long_that_its_feature_overflows():
    width = 256
    op = RandomFeatures(head_dim=width, num_features=32, seed=0, scale=1.0, of="key")
    longest = max(op.directions(), key=lambda row: sum(x * x for x in row))
    x = torch.tensor(longest).view(1, 1, width)
    words = {"head_dim": width, "num_features": 32, "seed": 0, "scale": 1.0, "exact": False}
    assert math.log(float(key_features(x, **words, shift=op.shift()).max())) == pytest.approx(MAX_EXPONENT, abs=1e-3)
    assert not bool(key_features(x, **words, shift=0.0).isfinite().all())


def test_a_performer_bears_queries_and_keys_of_any_size():
    _, model = drawn(tiny(PERFORMER % (12, 0, ""), stack=BARE % "mixer", position="none", more="head: none"))
    with torch.no_grad():
        found = model.get_submodule("layers.0").mixer(1e4 * torch.randn(1, LENGTH, 16, dtype=torch.float64))
    assert bool(found.isfinite().all())


def test_more_numbers_than_can_be_drawn_in_time_are_refused():
    with pytest.raises(SpecError, match="should be at most 16,384 with heads of 8"):
        loads_spec(tiny(PERFORMER % (20000, 0, "")))


def leaf(op, *widths):
    """The torch form of a linear attention op."""
    body = Body("test")
    inputs = tuple(Value(body, n, TensorType((BATCH, SEQ, width))) for n, width in enumerate(widths))
    outputs = tuple(Value(body, 9, kind) for kind in op.infer([value.type for value in inputs]))
    node = Node(op, "op", inputs, outputs, {}, {})
    return linear_attention(node, Context(torch.device("cpu"), torch.float64))


def of_rule(rule, keys=5, values=6):
    return LinearAttention(
        num_heads=HEADS, num_key_heads=HEADS, key_dim=keys, value_dim=values, scale=keys**-0.5, rule=rule
    )


def tokens(*widths, length=70):
    draw = torch.Generator().manual_seed(6)
    return [torch.randn(2, length, HEADS * width, generator=draw, dtype=torch.float64) for width in widths]


def test_kda_with_a_scalar_gate_is_gated_deltanet():
    q, k, v, decay, beta = tokens(5, 5, 6, 1, 1)
    q, k = (functional.normalize(x.unflatten(-1, (HEADS, -1)), dim=-1).flatten(-2) for x in (q, k))
    decay, beta, op = -decay.square(), beta.sigmoid(), of_rule("gated_delta")
    a_head = leaf(op, 10, 10, 12, 2, 2)(q, k, v, decay, beta)
    a_channel = leaf(op, 10, 10, 12, 10, 2)(q, k, v, decay.repeat_interleave(5, -1), beta)
    torch.testing.assert_close(a_channel, a_head, rtol=0, atol=1e-12)


def test_kda_without_delta_term_and_beta_is_gla():
    # fla's form: S = diag(e^g) S + k v^T; o = scale S^T q, token by token.
    q, k, v, g = tokens(5, 5, 6, 5)
    g = -g.square()
    got = leaf(of_rule("gated"), 10, 10, 12, 10)(q, k, v, g)
    q, k, v, g = (x.unflatten(-1, (HEADS, -1)) for x in (q, k, v, g))
    state, outs = q.new_zeros(2, HEADS, 5, 6), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1) + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        outs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) * 5**-0.5)
    torch.testing.assert_close(got, torch.stack(outs, 1).flatten(-2), rtol=0, atol=1e-12)


def test_a_decay_of_a_channel_serves_keys_that_heads_share():
    op = LinearAttention(num_heads=4, num_key_heads=2, key_dim=5, value_dim=6, scale=1.0, rule="gated")
    q, k, v, g = tokens(5, 5, 12, 10)
    g = -g.square()
    got = leaf(op, 10, 10, 24, 20)(q, k, v, g)
    q, k = (x.unflatten(-1, (2, -1)).repeat_interleave(2, 2).flatten(-2) for x in (q, k))
    alone = LinearAttention(num_heads=4, num_key_heads=4, key_dim=5, value_dim=6, scale=1.0, rule="gated")
    torch.testing.assert_close(got, leaf(alone, 20, 20, 24, 20)(q, k, v, g), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("mixer", "shape"),
    [(LINEAR % "", (2, 8, 9)), (PERFORMER % (12, 0, ""), (2, 12, 9)), (RETNET, (2, 4, 8)), (GLA, (2, 4, 8))],
)
def test_the_state_is_one_matrix_a_head_and_beside_it_the_column_that_normalises(mixer, shape):
    model = build(loads_spec(tiny(mixer)), device="cpu", seed=0)
    cache = new_cache(model, batch=3, max_model_len=64)
    (state,) = [tensor for name, tensor in cache.items() if name.startswith("layers.0.")]
    assert (tuple(state.shape), state.dtype) == ((3, *shape), torch.float32)
    with torch.no_grad():
        model(torch.zeros(3, 4, dtype=torch.int64), Step.at(0, 4), cache)
    assert bool(state.abs().sum() > 0)


@pytest.mark.parametrize("mixer", [LINEAR % "", PERFORMER % (12, 0, ""), RETNET, GLA])
def test_each_kind_compiles_whole_with_its_backward(mixer):
    model = build(loads_spec(tiny(mixer)), device="cpu", seed=0)
    ids, found = torch.arange(LENGTH).unsqueeze(0), []
    for form in (torch.compile(model, fullgraph=True, backend="aot_eager"), model):
        out = form(ids)
        model.zero_grad()
        out.square().sum().backward()
        found.append((out, model.get_submodule("layers.0").mixer.q_proj.weight.grad.clone()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.detach().abs().max()))
