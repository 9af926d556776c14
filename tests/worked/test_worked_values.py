"""Values that textbooks work out by hand, computed through the kinds."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.spec.slots import Slot  # noqa: E402
from archc.torch_backend.leaves.score import meet  # noqa: E402

pytestmark = pytest.mark.torch

AROUND = """
spec_version: 1
name: worked
dtype: float32
tokenizer: {{kind: external, vocab_size: 8}}
embedding: {{hidden_size: {width}, tie_word_embeddings: false}}
position: {position}
norm: none
max_position_embeddings: 64
mixers: {{mixer: {mixer}}}
{stack}: {{num_layers: 1, block: plain, mixer: mixer, ffn: none}}
head: none
"""


def spec(mixer: str, *, width: int, stack: str = "encoder", position: str = "none") -> Any:
    return archc.loads_spec(AROUND.format(mixer=mixer, width=width, stack=stack, position=position))


def built(mixer: str, **words: Any) -> Any:
    return archc.build(spec(mixer, **words), device="cpu", dtype="float64", seed=4).eval()


def ours(model: Any, scope: str) -> Any:
    return model.get_submodule(f"layers.0.mixer.{scope}").weight


@torch.no_grad()
def test_the_weights_of_three_tokens_are_the_softmax_of_their_products_over_the_root_of_two() -> None:
    q = torch.tensor([[0.1, 0.2], [0.3, 0.1], [0.2, 0.3]], dtype=torch.float64)
    k = torch.tensor([[0.3, 0.1], [0.2, 0.4], [0.1, 0.2]], dtype=torch.float64)
    # A token's embedding is [query, key, one-hot value], so that what attention gives are its weights.
    mixer = "{kind: general_attention, num_heads: 1, head_dim: 2, v_head_dim: 3, score: scaled_dot}"
    model = built(mixer, width=7)
    model.embed_tokens.weight[:3] = torch.cat((q, k, torch.eye(3, dtype=torch.float64)), -1)
    places = torch.eye(7, dtype=torch.float64)
    ours(model, "q_proj").copy_(places[:2])
    ours(model, "k_proj").copy_(places[2:4])
    ours(model, "v_proj").copy_(places[4:])
    ours(model, "o_proj").copy_(places[:, :3])
    found = model(torch.arange(3).unsqueeze(0))[0, :, :3]
    scores = [
        [(a * c + b * d) / 2**0.5 for c, d in ((0.3, 0.1), (0.2, 0.4), (0.1, 0.2))]
        for a, b in ((0.1, 0.2), (0.3, 0.1), (0.2, 0.3))
    ]
    powers = [[math.exp(score) for score in row] for row in scores]
    expected = torch.tensor([[each / sum(row) for each in row] for row in powers], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    rounded = torch.tensor([[0.3294, 0.3412, 0.3294], [0.3372, 0.3372, 0.3255], [0.3285, 0.3452, 0.3262]])
    assert float((found - rounded).abs().max()) < 1e-4


def test_the_variance_of_a_product_is_the_number_of_channels_and_one_when_it_is_scaled() -> None:
    d, draw = 64, torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 600, d, generator=draw, dtype=torch.float64) for _ in range(2))
    kinds: list[Any] = [Slot("score").load(name)() for name in ("dot", "scaled_dot")]
    plain, scaled = (meet(q, k, form=kind.form(d), weight_NH=None) for kind in kinds)
    assert float(plain.var()) == pytest.approx(d, rel=0.03)
    assert float(scaled.var()) == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize(
    "mixer",
    [
        "{kind: gqa, num_heads: 8, num_kv_heads: 8, head_dim: 64}",
        "{kind: general_attention, num_heads: 8, head_dim: 64, score: scaled_dot}",
    ],
)
def test_eight_heads_over_512_channels_have_1048576_parameters(mixer: str) -> None:
    found = archc.estimate(spec(mixer, width=512)).parameters
    assert found.total - found.embedding == 1_048_576 == 4 * 512 * 512


@torch.no_grad()
def test_sinusoids_of_a_later_position_are_a_linear_map_of_those_before() -> None:
    mixer = "{kind: gqa, num_heads: 1, num_kv_heads: 1, head_dim: 4}"
    model = built(mixer, width=16, position="sinusoidal")
    seen: list[Any] = []
    # What the layer is given, the embeddings being zeros, are the positions alone.
    model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model.embed_tokens.weight.zero_()
    model(torch.zeros(1, 60, dtype=torch.int64))
    at = seen[0][0].double()
    sines, cosines = at[:, 0::2], at[:, 1::2]
    for offset in (1, 7, 20):
        # The map turns each pair of channels by an angle that the offset alone says.
        angles = torch.tensor([offset / 10000 ** (2 * pair / 16) for pair in range(8)], dtype=torch.float64)
        later = sines[:40] * angles.cos() + cosines[:40] * angles.sin()
        torch.testing.assert_close(later, sines[offset : 40 + offset], rtol=0, atol=1e-5)
        later = cosines[:40] * angles.cos() - sines[:40] * angles.sin()
        torch.testing.assert_close(later, cosines[offset : 40 + offset], rtol=0, atol=1e-5)


IDS = torch.tensor([[1, 5, 2, 7, 0, 3]])


@torch.no_grad()
def test_grouped_attention_with_as_many_key_heads_is_multi_head_attention() -> None:
    grouped = built("{kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 3}", width=10, stack="stack")
    plain = built("{kind: general_attention, num_heads: 4, head_dim: 3, score: scaled_dot}", width=10, stack="stack")
    plain.load_state_dict(grouped.state_dict())
    torch.testing.assert_close(plain(IDS), grouped(IDS), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_grouped_attention_with_one_key_head_is_multi_query_attention() -> None:
    one = built("{kind: gqa, num_heads: 4, num_kv_heads: 1, head_dim: 3}", width=10, stack="stack")
    many = built("{kind: general_attention, num_heads: 4, head_dim: 3, score: scaled_dot}", width=10, stack="stack")
    weights = one.state_dict()
    shared = {
        name: weight.repeat(4, 1) if name.endswith(("k_proj.weight", "v_proj.weight")) else weight
        for name, weight in weights.items()
    }
    many.load_state_dict(shared)
    torch.testing.assert_close(many(IDS), one(IDS), rtol=1e-12, atol=1e-12)
