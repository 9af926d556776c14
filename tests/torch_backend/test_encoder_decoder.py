"""A decoder and its encoder in torch: whole, step by step, with texts of different lengths on both sides."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.torch_backend.left_out import left_out  # noqa: E402

pytestmark = pytest.mark.torch

SPEC = """
spec_version: 1
name: pair
dtype: float32
tokenizer: {kind: external, vocab_size: 60, pad_token_id: 0}
embedding: {hidden_size: 24, tie_word_embeddings: true, scale: sqrt(hidden_size)}
position: sinusoidal
norm: {kind: layer_norm, eps: 1e-6}
max_position_embeddings: 64
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 6}}
ffns: {mlp: {kind: mlp, intermediate_size: 40, activation: relu, bias: true}}
encoder: {num_layers: 2, block: post_norm, mixer: attn, ffn: mlp}
decoder: {num_layers: 3, block: post_norm, mixer: attn, cross: attn, ffn: mlp}
"""
OWN = ", tokenizer: {kind: external, vocab_size: 40}, embedding: {hidden_size: 32, tie_word_embeddings: false}}"
FORMS = {
    "one table three times": SPEC,
    "learned positions": SPEC.replace("position: sinusoidal", "position: learned"),
    "rope, and none to the encoder": SPEC.replace("position: sinusoidal", "position: {kind: rope, theta: 100.0}"),
    "relative biases": SPEC.replace("sinusoidal", "{kind: relative_bias, num_buckets: 8, max_distance: 16}"),
    "a decoder with words and a width of its own": SPEC.replace(
        "cross: attn, ffn: mlp}", f"cross: attn, ffn: mlp{OWN}"
    ),
    "norms before branches": SPEC.replace("post_norm", "pre_norm"),
    "norms before and after": SPEC.replace("post_norm", "sandwich"),
    "a layer without cross": SPEC.replace("cross: attn", "cross: attn none attn"),
    "a window in the decoder": SPEC.replace(
        "head_dim: 6}}",
        "head_dim: 6}, near: {kind: gqa, num_heads: 4, num_kv_heads: 1, head_dim: 6, sliding_window: 3}}",
    ).replace("mixer: attn, cross", "mixer: near attn near, cross"),
    "a recurrent decoder": SPEC.replace(
        "head_dim: 6}}", "head_dim: 6}, kda: {kind: kda, num_heads: 2, head_dim: 8}}"
    ).replace("mixer: attn, cross", "mixer: kda, cross"),
}
TOKENS, SOURCE = 9, 7
LENGTHS = (SOURCE, 4)
DRAW = torch.Generator().manual_seed(3)
IDS, TEXT = (torch.randint(1, 40, (2, count), generator=DRAW) for count in (TOKENS, SOURCE))
MASK = (torch.arange(SOURCE) < torch.tensor(LENGTHS).unsqueeze(1)).long()


def built(text: str, **options: Any) -> Any:
    model = archc.build(archc.loads_spec(text), device="cpu", dtype="float64", seed=2, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return model


@pytest.fixture(scope="module", params=FORMS)
def text(request: pytest.FixtureRequest) -> str:
    return FORMS[request.param]


@pytest.fixture(scope="module")
def model(text: str) -> Any:
    return built(text)


def assert_same(got: Any, expected: Any) -> None:
    # Some states are kept in float32 whatever the model's dtype.
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_steps_over_a_cache_give_what_the_whole_gives(model: Any) -> None:
    whole = model(IDS, encoder_input_ids=TEXT, encoder_attention_mask=MASK)
    for pieces in ([TOKENS], [1] * TOKENS, [4, 1, 3, 1]):
        cache = archc.new_cache(model, batch=2, max_model_len=TOKENS, source_len=SOURCE)
        past, found = 0, []
        for count in pieces:
            given = {"encoder_attention_mask": MASK} | ({} if past else {"encoder_input_ids": TEXT})
            found.append(model(IDS[:, past : past + count], archc.Step.at(past, count), cache, **given))
            past += count
        assert_same(torch.cat(found, 1), whole)


@torch.no_grad()
def test_padding_of_either_text_is_seen_by_nobody(model: Any) -> None:
    lengths = torch.tensor([TOKENS, 5])
    alone = [
        model(IDS[row : row + 1, :count], encoder_input_ids=TEXT[row : row + 1, : LENGTHS[row]])[0]
        for row, count in enumerate(lengths.tolist())
    ]
    cache = archc.new_cache(model, batch=2, max_model_len=TOKENS + 2, source_len=SOURCE)
    step = archc.Step.ragged(torch.zeros(2, dtype=torch.int64), lengths, TOKENS)
    found = model(IDS, step, cache, encoder_input_ids=TEXT, encoder_attention_mask=MASK)
    for row, count in enumerate(lengths.tolist()):
        assert_same(found[row, :count], alone[row])
    # One more token of each, over caches that hold different numbers of them.
    more = torch.tensor([[7], [8]])
    ragged = archc.Step.ragged(lengths, torch.ones(2, dtype=torch.int64), 1)
    found = model(more, ragged, cache, encoder_attention_mask=MASK)
    for row, count in enumerate(lengths.tolist()):
        ids = torch.cat((IDS[row : row + 1, :count], more[row : row + 1]), 1)
        assert_same(found[row, 0], model(ids, encoder_input_ids=TEXT[row : row + 1, : LENGTHS[row]])[0, -1])
    # Padding to the left of a source is as little to see.
    turned = torch.stack((TEXT[0], TEXT[1].roll(SOURCE - LENGTHS[1])))
    whole = model(IDS, encoder_input_ids=TEXT, encoder_attention_mask=MASK)
    assert_same(model(IDS, encoder_input_ids=turned, encoder_attention_mask=MASK.flip(1)), whole)


@torch.no_grad()
def test_a_token_sees_the_whole_source_and_no_later_token(model: Any) -> None:
    before = model(IDS, encoder_input_ids=TEXT)
    for at in range(SOURCE):
        other = TEXT.clone()
        other[:, at] = (other[:, at] + 5) % 40
        moved = (model(IDS, encoder_input_ids=other) - before).abs().amax(-1)
        assert (moved > 1e-9).all(), at
    for at in range(TOKENS):
        other = IDS.clone()
        other[:, at] = (other[:, at] + 5) % 40
        moved = (model(other, encoder_input_ids=TEXT) - before).abs().amax(-1)
        assert (moved[:, :at] == 0).all(), at
        assert (moved[:, at] > 1e-9).all(), at


@torch.no_grad()
@pytest.mark.parametrize("pairs", ["needed", "dense"])
def test_the_readable_twins_give_the_same_numbers(text: str, model: Any, pairs: Any) -> None:
    given = {"encoder_input_ids": TEXT, "encoder_attention_mask": MASK}
    assert_same(built(text, twin=pairs)(IDS, **given), model(IDS, **given))


@torch.no_grad()
def test_a_copy_and_a_pickled_model_give_the_same_numbers(model: Any) -> None:
    expected = model(IDS, encoder_input_ids=TEXT)
    for other in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(IDS, encoder_input_ids=TEXT), expected)


def test_every_weight_gets_a_gradient(model: Any) -> None:
    model.zero_grad()
    model(IDS, encoder_input_ids=TEXT, encoder_attention_mask=MASK).square().mean().backward()
    still = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # A key's bias moves all scores of a query alike, which no softmax shows.
    assert not [name for name in still if not name.endswith("k_proj.bias")]


@torch.no_grad()
def test_one_compiled_graph_reads_the_source_and_another_goes_on() -> None:
    # Compiled anew each time, so of one form only.
    model = built(SPEC)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    whole = model(IDS, encoder_input_ids=TEXT)
    cache = archc.new_cache(model, batch=2, max_model_len=TOKENS, source_len=SOURCE)
    first = compiled(IDS[:, :5], archc.Step.at(0, 5), cache, encoder_input_ids=TEXT)
    then = compiled(IDS[:, 5:], archc.Step.at(5, 4), cache)
    assert_same(torch.cat((first, then), 1), whole)
    torch._dynamo.reset()


def test_what_a_decoder_lacks_is_said() -> None:
    model = built(SPEC)
    with pytest.raises(ValueError, match="a decoder without a cache needs encoder_input_ids in every call"):
        model(IDS)
    short = archc.new_cache(model, batch=2, max_model_len=TOKENS, source_len=SOURCE - 1)
    with pytest.raises(ValueError, match="the cache keeps 6 tokens of the encoder for 2 rows, and 7 for 2 are given"):
        model(IDS, archc.Step.at(0, TOKENS), short, encoder_input_ids=TEXT)


def test_a_function_that_is_left_out_has_a_name_by_which_it_is_found_again() -> None:
    multiply = left_out(torch.mul)
    assert pickle.loads(pickle.dumps(multiply)) is multiply is left_out(torch.mul)
    assert multiply(None, 3) is None
    assert int(multiply(torch.tensor(4), 3)) == 12
    from archc.torch_backend import left_out as module

    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        module.missing  # noqa: B018
