"""Latent attention in its two forms: what is expanded for many tokens and absorbed for one is one formula."""

import pytest

torch = pytest.importorskip("torch")

from archc.ir.values import Body, Node, TensorType, Value  # noqa: E402
from archc.ops.attention import LatentAttention  # noqa: E402
from archc.torch_backend.context import Context  # noqa: E402
from archc.torch_backend.leaves.attention import latent_attention  # noqa: E402

pytestmark = pytest.mark.torch

HEADS, RANK, NOPE, ROPE, VALUE, KEYS = 3, 16, 8, 4, 6, 11


@pytest.fixture
def leaf():
    op = LatentAttention(
        num_heads=HEADS, kv_lora_rank=RANK, nope_dim=NOPE, rope_dim=ROPE, value_dim=VALUE, scale=(NOPE + ROPE) ** -0.5
    )
    kinds = [TensorType((2, 1, width)) for width in (HEADS * (NOPE + ROPE), RANK, ROPE)]
    values = tuple(Value(Body("test"), number, kind) for number, kind in enumerate(kinds))
    node = Node(op, "attention", values, values[:1], op.params(kinds), {})
    module = latent_attention(node, Context(torch.device("cpu"), torch.float64))
    with torch.no_grad():
        module.kv_b_proj.weight.copy_(drawn(HEADS * (NOPE + VALUE), RANK, seed=0))
    return module


def drawn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("masked", [False, True])
def test_absorbed_is_expanded_and_both_are_the_formula(leaf, masked):
    query, latent, shared = (
        drawn(2, HEADS, 1, NOPE + ROPE, seed=1),
        drawn(2, KEYS, RANK, seed=2),
        drawn(2, KEYS, ROPE, seed=3),
    )
    seen = torch.arange(KEYS) < torch.tensor([[KEYS], [4]])
    mask = seen[:, None, None] if masked else None
    want = torch.empty(2, HEADS, 1, VALUE, dtype=torch.float64)
    up = leaf.kv_b_proj.weight.detach().view(HEADS, NOPE + VALUE, RANK)
    for row in range(2):
        for head in range(HEADS):
            keys = torch.cat((latent[row] @ up[head, :NOPE].T, shared[row]), 1)
            scores = keys @ query[row, head, 0] / (NOPE + ROPE) ** 0.5
            if masked:
                scores[~seen[row]] = -torch.inf
            want[row, head, 0] = torch.softmax(scores, 0) @ (latent[row] @ up[head, NOPE:].T)
    with torch.no_grad():
        expanded = leaf._expanded(query, latent, shared, mask, False)
        absorbed = leaf._absorbed(query, latent, shared, mask)
    torch.testing.assert_close(expanded, want, rtol=0, atol=1e-12)
    # The absorbed form takes its softmax in float32 whatever the model's dtype is.
    torch.testing.assert_close(absorbed, want, rtol=0, atol=2e-6)


def test_the_absorbed_query_has_the_scores_of_the_expanded_keys(leaf):
    query, latent = drawn(HEADS, NOPE, seed=1), drawn(KEYS, RANK, seed=2)
    up = leaf.kv_b_proj.weight.detach().view(HEADS, NOPE + VALUE, RANK)[:, :NOPE]
    expanded = torch.einsum("nh,nht->nt", query, up @ latent.T)
    absorbed = torch.einsum("nh,nhr->nr", query, up) @ latent.T
    torch.testing.assert_close(absorbed, expanded, rtol=0, atol=1e-12)
