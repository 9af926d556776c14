"""Leaves that fast models and twins share, against their formulas written down once more in plain numbers."""

import cmath
import math

import pytest

torch = pytest.importorskip("torch")

from archc.torch_backend.leaves.elementwise import gated, relu2, soft_capped  # noqa: E402
from archc.torch_backend.leaves.norm import l2, weightless_rms  # noqa: E402
from archc.torch_backend.leaves.rotary import rotate, warmed  # noqa: E402
from archc.torch_backend.leaves.softmax import visible  # noqa: E402
from tests.torch_backend.examples import FFNS, MIXERS, assert_close, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

EPS = 1e-5


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softplus(x):
    return math.log1p(math.exp(x))


SCORES = {
    "softmax": lambda logits: [math.exp(x) / sum(math.exp(y) for y in logits) for x in logits],
    "sigmoid": lambda logits: [sigmoid(x) for x in logits],
    "sqrtsoftplus": lambda logits: [softplus(x) ** 0.5 for x in logits],
}


def routed(route, x):
    """{expert: weight} of one token."""
    bias = [0.0] * route.weight.shape[0] if route.bias is None else route.bias.tolist()
    rows = zip(route.weight.tolist(), bias, strict=True)
    scores = SCORES[route.scoring_func]([sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in rows])
    correction = route.e_score_correction_bias
    choice = scores if correction is None else [s + c for s, c in zip(scores, correction.tolist(), strict=True)]
    size = len(scores) // route.n_group
    groups = [choice[i : i + size] for i in range(0, len(scores), size)]
    judged = [max(g) if route.group_score == "max" else sum(sorted(g)[-2:]) for g in groups]
    best = sorted(range(len(groups)), key=lambda i: -judged[i])[: route.topk_group]
    allowed = [e for e in range(len(scores)) if e // size in best]
    chosen = sorted(allowed, key=lambda e: -choice[e])[: route.top_k]
    total = sum(scores[e] for e in chosen) if route.norm_topk_prob else 1.0
    return {e: scores[e] / total * route.routed_scaling_factor for e in chosen}


@pytest.mark.parametrize("ffn", [name for name in FFNS if name.startswith("moe")])
def test_a_router_chooses_and_weighs_as_the_formula_says(ffn):
    route = lively(small_spec(ffn=FFNS[ffn], layers=1)).layers[0].ffn.router
    x = draw(2, 20, 32)
    with torch.no_grad():
        indices, weights = route(x)
    assert weights.dtype == torch.float32
    for row, chosen, weighed in zip(*(t.flatten(0, 1).tolist() for t in (x, indices, weights)), strict=True):
        assert dict(zip(chosen, weighed, strict=True)) == pytest.approx(routed(route, row), rel=1e-4)


def test_a_correction_bias_changes_the_choice_and_not_the_weights():
    route = lively(small_spec(ffn=FFNS["moe sigmoid corrected"], layers=1)).layers[0].ffn.router
    route.norm_topk_prob = False
    x = draw(1, 50, 32)
    with torch.no_grad():
        before, _ = route(x)
        route.e_score_correction_bias += torch.tensor([9.0, 9.0, *[0.0] * 6])
        after, weights = route(x)
    assert (before.sort(-1)[0] != after.sort(-1)[0]).any()
    assert set(after.flatten().tolist()) == {0, 1}
    assert weights.max() <= 2.5


def test_norms_are_what_they_say():
    x = draw(2, 3, 24)
    heads = x.double().view(2, 3, 3, 8)
    expected = heads / (heads.square().mean(-1, keepdim=True) + EPS).sqrt()
    assert_close(weightless_rms(x, head_dim=8, eps=EPS), expected.flatten(-2), 1e-6)
    expected = heads / (heads.square().sum(-1, keepdim=True) + 1e-2).sqrt()
    assert_close(l2(x, head_dim=8, eps=1e-2), expected.flatten(-2), 1e-6)


def test_the_output_norm_of_a_linear_mixer_is_gated_by_a_sigmoid():
    norm = lively(small_spec(MIXERS["kda"], layers=1)).layers[0].mixer.o_norm
    x, gate = draw(2, 3, 32), draw(2, 3, 32, seed=1)
    heads = x.double().view(2, 3, 2, 16)
    normed = heads / (heads.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()
    assert_close(norm(x, gate), normed.flatten(-2) * gate.double().sigmoid(), 1e-6)


@pytest.mark.parametrize(("mixer", "floor"), [("kda", None), ("kda full rank gate", -5.0)])
def test_decays_are_what_they_say(mixer, floor):
    gate = lively(small_spec(MIXERS[mixer], layers=1)).layers[0].mixer.forget_gate
    x = 3 * draw(1, 2, 32)
    with torch.no_grad():
        found = gate(x)
    assert found.dtype == torch.float32
    assert (found <= 0).all()
    for channel in range(32):
        rate, shift = math.exp(gate.A_log[channel // 16].item()), gate.dt_bias[channel].item()
        for token in range(2):
            z = x[0, token, channel].item() + shift
            expected = -rate * softplus(z) if floor is None else floor * sigmoid(rate * z)
            assert found[0, token, channel].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("dim", "offset"), [(8, 0), (4, 0), (4, 4), (6, 1)])
def test_a_rotation_turns_pairs_as_complex_numbers(dim, offset, style):
    x, angles = draw(1, 5, 16), draw(1, 5, dim // 2, seed=1)
    found = rotate(x, angles.cos(), angles.sin(), head_dim=8, dim=dim, offset=offset, style=style)
    expected = x.clone()
    half = dim // 2
    for token in range(5):
        for start in (offset, 8 + offset):
            for pair in range(half):
                first, second = (pair, pair + half) if style == "half" else (2 * pair, 2 * pair + 1)
                value = complex(x[0, token, start + first], x[0, token, start + second])
                value *= cmath.exp(1j * angles[0, token, pair].item())
                expected[0, token, start + first], expected[0, token, start + second] = value.real, value.imag
    assert_close(found, expected, 1e-6)


def test_small_functions_are_what_they_say():
    gate, up = 3 * draw(50), 3 * draw(50, seed=1)
    found = gated(gate, up, function="silu", limit=2.0, alpha=1.7, up_offset=1.0)
    for g, u, y in zip(gate.tolist(), up.tolist(), found.tolist(), strict=True):
        g, u = min(g, 2.0), max(-2.0, min(u, 2.0))
        assert y == pytest.approx(g * sigmoid(1.7 * g) * (u + 1), rel=1e-4, abs=1e-6)
    assert_close(soft_capped(gate, 2.0), 2 * torch.tanh(gate / 2), 1e-6)
    assert_close(relu2(gate), gate.clamp(min=0) ** 2, 1e-6)
    positions = torch.tensor([[0, 2, 3, 4, 11]])
    expected = [1 + 0.1 * math.log(1 + (p + 1) // 4) for p in positions[0].tolist()]
    assert_close(warmed(torch.ones(1, 5, 1), positions, scale=0.1, floor=4)[0, :, 0], torch.tensor(expected), 1e-6)


def test_what_a_query_sees_is_what_it_says():
    query, key = torch.arange(12).unsqueeze(0), torch.arange(-2, 12).unsqueeze(0)
    for words, sees in (
        ({}, lambda q, k: True),
        ({"window": 3}, lambda q, k: q - k < 3),
        ({"chunk": 5}, lambda q, k: q // 5 == k // 5),
    ):
        found = visible(query, key, **words)[0, 0]
        for q in range(12):
            assert [0 <= k <= q and sees(q, k) for k in range(-2, 12)] == found[q].tolist()
