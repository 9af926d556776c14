"""What a token sees: everything, a window on both sides, a first part whole, and never padding."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.ops.masked_attention import RelativeBias, bucket_of  # noqa: E402
from archc.torch_backend.leaves.masked_attention import RelativeBias as Leaf  # noqa: E402

pytestmark = pytest.mark.torch

SPEC = """
spec_version: 1
name: masked
dtype: float32
tokenizer: {{kind: external, vocab_size: 60}}
embedding: {{hidden_size: 24, tie_word_embeddings: false}}
position: {position}
norm: {{kind: rms_norm, eps: 1e-6}}
max_position_embeddings: 64
mixers: {{attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 6{more}}}}}
ffns: {{mlp: {{kind: mlp, intermediate_size: 40, activation: relu}}}}
stack: {{num_layers: 2, block: pre_norm, mixer: attn, ffn: mlp, mask: {mask}}}
"""
POSITIONS = {
    "rope": "{kind: rope, theta: 100.0}",
    "relative_bias": "{kind: relative_bias, num_buckets: 8, max_distance: 12}",
    "alibi": "alibi",
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "none": "none",
}
TOKENS = 11
IDS = torch.randint(60, (2, TOKENS), generator=torch.Generator().manual_seed(1))


def model_of(mask: str, position: str = "rope", more: str = "") -> Any:
    """A model whose scores matter; equal seeds give equal weights whatever the mask."""
    text = SPEC.format(mask=mask, position=POSITIONS[position], more=more)
    model = archc.build(archc.loads_spec(text), device="cpu", dtype="float64", seed=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return model


def assert_same(got: Any, expected: Any, atol: float = 1e-9) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


@torch.no_grad()
def reach(model: Any, **given: Any) -> list[set[int]]:
    """For each token, the tokens whose change it notices after one layer and more."""
    before = model(IDS[:1], **given)
    seen: list[set[int]] = [set() for _ in range(TOKENS)]
    for changed in range(TOKENS):
        ids = IDS[:1].clone()
        ids[0, changed] = (ids[0, changed] + 7) % 60
        moved = (model(ids, **given) - before).abs().amax(-1)[0] > 1e-12
        for token in moved.nonzero().flatten().tolist():
            seen[token].add(changed)
    return seen


@pytest.mark.parametrize("position", ["rope", "relative_bias", "alibi", "none"])
def test_no_prefix_is_causal_and_a_whole_one_sees_everything(position: str) -> None:
    prefix, causal, both = (model_of(mask, position) for mask in ("prefix", "causal", "bidirectional"))
    with torch.no_grad():
        assert_same(prefix(IDS, prefix_length=torch.tensor([0, 0])), causal(IDS))
        assert_same(prefix(IDS), causal(IDS))
        if position == "relative_bias":
            # A prefix has the buckets of a causal stack, where all that comes after is at the distance 0.
            return
        assert_same(prefix(IDS, prefix_length=torch.tensor([TOKENS] * 2)), both(IDS))
        mixed = prefix(IDS, prefix_length=torch.tensor([0, TOKENS]))
        assert_same(mixed, torch.stack((causal(IDS)[0], both(IDS)[1])))
        assert not torch.allclose(causal(IDS), both(IDS), atol=1e-3)


@pytest.mark.parametrize("position", ["rope", "relative_bias"])
def test_a_token_of_the_prefix_sees_all_of_it_and_nothing_behind(position: str) -> None:
    seen = reach(model_of("prefix", position), prefix_length=torch.tensor([4]))
    assert seen == [set(range(max(4, token + 1))) for token in range(TOKENS)]


@pytest.mark.parametrize("position", ["rope", "relative_bias", "alibi"])
@pytest.mark.parametrize("pieces", [[6, 1, 1, 3], [TOKENS], [8, 3]], ids=str)
def test_what_follows_a_prefix_is_the_same_over_a_cache(position: str, pieces: list[int]) -> None:
    model, lengths = model_of("prefix", position), torch.tensor([6, 3])
    whole = model(IDS, prefix_length=lengths)
    cache = archc.new_cache(model, batch=2, max_model_len=TOKENS)
    past, found = 0, []
    with torch.no_grad():
        for count in pieces:
            step = archc.Step.at(past, count)
            found.append(model(IDS[:, past : past + count], step, cache, prefix_length=lengths))
            past += count
        assert_same(torch.cat(found, 1), whole)


def test_a_window_on_both_sides_reaches_half_of_it_each_way() -> None:
    def one_layer(window: int) -> list[set[int]]:
        text = SPEC.format(mask="bidirectional", position="none", more=f", sliding_window: {window}")
        text = text.replace("num_layers: 2", "num_layers: 1")
        return reach(archc.build(archc.loads_spec(text), device="cpu", dtype="float64", seed=2).eval())

    for window in (1, 2, 3, 4, 7):
        side = window // 2
        assert one_layer(window) == [
            set(range(max(0, token - side), min(TOKENS, token + side + 1))) for token in range(TOKENS)
        ]


@pytest.mark.parametrize("position", ["rope", "alibi"])
def test_a_window_longer_than_the_text_changes_nothing(position: str) -> None:
    wide, full = model_of("bidirectional", position, ", sliding_window: 22"), model_of("bidirectional", position)
    with torch.no_grad():
        assert_same(wide(IDS), full(IDS))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("more", ["", ", sliding_window: 4"], ids=["full", "window"])
def test_padding_on_either_side_changes_no_token(position: str, more: str) -> None:
    if more and position == "relative_bias":
        pytest.skip("a bias on the scores stands beside no window")
    model, lengths = model_of("bidirectional", position, more), (TOKENS, 6)
    right = (torch.arange(TOKENS) < torch.tensor(lengths).unsqueeze(1)).long()
    with torch.no_grad():
        alone = [model(IDS[row : row + 1, :length])[0] for row, length in enumerate(lengths)]
        padded = model(IDS, attention_mask=right)
        turned = torch.stack((IDS[0], IDS[1].roll(TOKENS - 6)))
        left = model(turned, attention_mask=right.flip(1))
        for row, length in enumerate(lengths):
            assert_same(padded[row, :length], alone[row])
            assert_same(left[row, TOKENS - length :], alone[row])
        assert torch.isfinite(padded).all()
        assert torch.isfinite(left).all()
        assert_same(model(IDS, attention_mask=torch.ones_like(IDS)), model(IDS))


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 16), (16, 33)])
def test_buckets_are_those_of_the_formula_and_of_transformers(mask: str, buckets: int, furthest: int) -> None:
    leaf = Leaf(RelativeBias(num_heads=1, num_buckets=buckets, max_distance=furthest, mask=mask))
    distances = torch.arange(-3 * furthest, 3 * furthest + 1)
    found = leaf._buckets(distances).tolist()
    both = mask == "bidirectional"
    expected = [
        bucket_of(distance, num_buckets=buckets, max_distance=furthest, bidirectional=both)
        for distance in distances.tolist()
    ]
    assert found == expected
    # The first bucket of what comes after would be that of the distance 0.
    assert set(found) == set(range(buckets)) - ({buckets // 2} if both else set())
    # Away from a token no step leads back.
    behind = [bucket for distance, bucket in zip(distances.tolist(), found, strict=True) if distance <= 0][::-1]
    assert all(one <= other for one, other in pairwise(behind))
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    theirs = modeling.T5Attention._relative_position_bucket(distances, both, buckets, furthest)
    assert found == theirs.tolist()


KINDS = {
    "gqa": "{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 6, sliding_window: 4}",
    "kda": "{kind: kda, num_heads: 2, head_dim: 8}",
    "mamba2": "{kind: mamba2, num_heads: 4, head_dim: 12, n_groups: 1, state_size: 8}",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_padded_anywhere_is_turned_into_one_that_caches_take(kind: str) -> None:
    text = SPEC.format(mask="causal", position=POSITIONS["rope"], more="").splitlines()
    text[9] = f"mixers: {{attn: {KINDS[kind]}}}"
    model = archc.build(archc.loads_spec("\n".join(text)), device="cpu", dtype="float64", seed=2).eval()
    lengths = torch.tensor([TOKENS, 6])
    turned = torch.stack((IDS[0], IDS[1].roll(TOKENS - 6)))
    left = (torch.arange(TOKENS) < lengths.unsqueeze(1)).long().flip(1)
    ids, step = archc.pad_right(turned, left)
    assert ids[1, :6].tolist() == IDS[1, :6].tolist()
    with torch.no_grad():
        alone = [model(IDS[row : row + 1, :length])[0] for row, length in enumerate(lengths.tolist())]
        cache = archc.new_cache(model, batch=2, max_model_len=2 * TOKENS)
        found = model(ids, step, cache)
        for row, length in enumerate(lengths.tolist()):
            assert_same(found[row, :length], alone[row])
        # And once more over what the cache holds, padded on the left again.
        more = torch.tensor([[0, 5], [9, 8]])
        ids, step = archc.pad_right(more, torch.tensor([[0, 1], [1, 1]]), past=lengths)
        found = model(ids, step, cache, last_only=True)[:, 0]
        # States of recurrences are kept in float32.
        assert_same(found[0], model(torch.cat((IDS[:1], more[:1, 1:]), 1))[0, -1], atol=1e-6)
        assert_same(found[1], model(torch.cat((IDS[1:, :6], more[1:]), 1))[0, -1], atol=1e-6)


def test_a_mask_with_holes_keeps_the_order_of_its_tokens() -> None:
    ids, step = archc.pad_right(torch.tensor([[9, 1, 9, 2], [3, 9, 9, 9]]), torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0]]))
    assert ids[0].tolist() == [1, 2]
    assert int(ids[1, 0]) == 3
    assert step.new is not None
    assert step.new.tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"ids and mask should both be \(batch, seq\)"):
        archc.pad_right(torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 4))
