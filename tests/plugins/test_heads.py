"""Heads over tokens and over one vector a text, and pictures as tokens: what they compute, and where they have no place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.errors import GraphError, SpecError  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.testing.placing import spec_text  # noqa: E402

pytestmark = pytest.mark.torch

ENCODER = {"encoder": {}, "norm": {"kind": "layer_norm", "eps": 1e-5}}
PATCH = {"hidden_size": 16, "image_size": 12, "patch_size": 4, "num_channels": 2}
PICTURES = {"encoder": {}, "tokenizer": "none", "position": "learned"}


def model_of(family, name, keys, around):
    return archc.build(loads_spec(spec_text(family, name, keys, around)), device="cpu", seed=0).eval()


def hidden_of(model, around, *inputs, **more):
    """What the head of a model is given: the same weights in a model that has none."""
    bare = archc.build(loads_spec(spec_text("head", "none", {}, around)), device="cpu")
    bare.load_state_dict({key: tensor for key, tensor in model.state_dict().items() if key in bare.state_dict()})
    return bare(*inputs, **more)


@pytest.fixture
def ids():
    return torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask():
    """Padding on the left, on the right, nowhere."""
    return torch.tensor([[0] * 3 + [1] * 6, [1] * 4 + [0] * 5, [1] * 9])


@pytest.mark.parametrize("pool", ["cls", "mean", "last"])
@torch.no_grad()
def test_a_text_is_classified_by_its_own_tokens_and_by_no_padding(ids, mask, pool):
    model = model_of("head", "classifier", {"num_labels": 5, "pool": pool}, ENCODER)
    hidden = hidden_of(model, ENCODER, ids, attention_mask=mask)
    spans = [(3, 9), (0, 4), (0, 9)]
    chosen = {
        "cls": [hidden[row, start] for row, (start, _) in enumerate(spans)],
        "mean": [hidden[row, start:stop].mean(0) for row, (start, stop) in enumerate(spans)],
        "last": [hidden[row, stop - 1] for row, (_, stop) in enumerate(spans)],
    }[pool]
    want = torch.nn.functional.linear(torch.stack(chosen), model.classifier.weight, model.classifier.bias)
    torch.testing.assert_close(model(ids, attention_mask=mask), want)


@torch.no_grad()
def test_each_token_is_classified_where_nothing_is_pooled(ids):
    model = model_of("head", "classifier", {"num_labels": 5, "pool": "none", "bias": False}, ENCODER)
    want = hidden_of(model, ENCODER, ids) @ model.classifier.weight.T
    torch.testing.assert_close(model(ids), want)


@torch.no_grad()
def test_a_decoder_classifies_by_the_last_token_of_each_row_however_the_text_comes(ids):
    model = model_of("head", "classifier", {"num_labels": 5, "pool": "last"}, {})
    whole = model(ids)
    cache = archc.new_cache(model, batch=3, max_model_len=16)
    model(ids[:, :5], archc.Step.at(0, 5), cache)
    torch.testing.assert_close(model(ids[:, 5:], archc.Step.at(5, 4), cache), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(ids, last_only=True), whole)
    lengths = torch.tensor([9, 4, 1])
    cache = archc.new_cache(model, batch=3, max_model_len=16)
    ragged = model(ids, archc.Step.ragged(torch.zeros(3, dtype=torch.int64), lengths, 9), cache)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(ragged[row], model(ids[row : row + 1, :length])[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_pooler_gives_hidden_states_and_a_vector_of_the_first_token(ids):
    model = model_of("head", "pooler", {}, ENCODER)
    hidden, pooled = model(ids)
    assert list(model.archc_graph.outputs) == ["hidden_states", "pooler_output"]
    torch.testing.assert_close(pooled, torch.tanh(model.pooler(hidden[:, 0])))


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_masked_tokens_are_predicted_by_the_table_behind_a_layer_and_a_norm(ids, tied):
    around = {**ENCODER, "embedding": {"hidden_size": 16, "embedding_size": 12, "tie_word_embeddings": tied}}
    model = model_of("head", "mlm", {"activation": "relu"}, around)
    normed = model.head_norm(torch.relu(model.head_dense(hidden_of(model, around, ids))))
    assert normed.shape[-1] == 12
    assert (model.lm_head.weight is model.embed_tokens.weight) == tied
    torch.testing.assert_close(model(ids), normed @ model.lm_head.weight.T + model.lm_head.bias)


@pytest.mark.parametrize(
    ("name", "keys"),
    [("classifier", {"num_labels": 2}), ("classifier", {"num_labels": 2, "pool": "mean"}), ("pooler", {})],
)
def test_a_first_token_that_saw_nothing_after_it_is_not_pooled(name, keys):
    with pytest.raises(GraphError, match="wants tokens that see everything, and this stack is causal"):
        expand(loads_spec(spec_text("head", name, keys)))


def test_words_are_not_predicted_where_there_is_no_table():
    around = {**PICTURES, "embedding": {"kind": "patch", **PATCH}}
    with pytest.raises(GraphError, match="mlm predicts tokens, and this embedding has no table"):
        expand(loads_spec(spec_text("head", "mlm", {"activation": "gelu"}, around)))


@pytest.mark.parametrize("key", ["norm: true", "dense_bias: false"])
def test_keys_of_a_layer_that_is_not_there_are_refused(key):
    name, _, value = key.partition(": ")
    with pytest.raises(SpecError, match="says something of the dense layer, which activation asks for"):
        loads_spec(spec_text("head", "classifier", {"num_labels": 2, name: value == "true"}, ENCODER))


@torch.no_grad()
def test_patches_are_cut_row_by_row_behind_a_learned_token():
    model = model_of("embedding", "patch", PATCH, {**PICTURES, "position": "none", "head": "none"})
    pixels = torch.randn(2, 2, 12, 12)
    weight, bias = model.patch_proj.weight.flatten(1), model.patch_proj.bias
    want = [
        pixels[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten(1) @ weight.T + bias
        for row in range(3)
        for column in range(3)
    ]
    found = model.cls_token(model.patch_proj(pixels))
    torch.testing.assert_close(found[:, 1:], torch.stack(want, 1), rtol=1e-4, atol=1e-5)
    assert torch.equal(found[:, 0], model.cls_token.weight.expand(2, -1))
    assert model(pixels).shape == (2, 10, 16)


def test_pictures_of_another_size_are_an_error():
    model = model_of("embedding", "patch", PATCH, {**PICTURES, "head": "none"})
    with pytest.raises(ValueError, match=r"pixel_values should be \(batch, 2, 12, 12\), not \[1, 2, 16, 16\]"):
        model(torch.zeros(1, 2, 16, 16))


def test_a_picture_is_no_whole_number_of_patches():
    with pytest.raises(SpecError, match=r"should divide image_size, 12 \(found 5\)"):
        loads_spec(spec_text("embedding", "patch", {**PATCH, "patch_size": 5}, PICTURES))


def test_a_table_of_no_ids_is_an_error():
    around = {"tokenizer": "none", "head": "none"}
    with pytest.raises(
        GraphError, match="the tokenizer has no ids, so there is no table of them; state num_embeddings"
    ):
        expand(loads_spec(spec_text("embedding", "token", {"hidden_size": 16}, around)))


@torch.no_grad()
def test_a_narrow_table_may_be_widened_behind_types_and_norm(ids):
    keys = {"hidden_size": 16, "embedding_size": 6, "type_vocab_size": 3, "norm": True}
    last = {**keys, "projection": "last", "projection_bias": True}
    model = model_of("embedding", "token", last, {**ENCODER, "head": "none"})
    assert {name: tuple(param.shape) for name, param in model.named_parameters() if "embed" in name} == {
        "embed_tokens.weight": (40, 6),
        "token_type_embeddings.weight": (3, 6),
        "embed_norm.weight": (6,),
        "embed_norm.bias": (6,),
        "embed_proj.weight": (16, 6),
        "embed_proj.bias": (16,),
    }
    first = model_of("embedding", "token", keys, {**ENCODER, "head": "none"})
    assert first.embed_norm.weight.shape == (16,)
    assert first.embed_proj.bias is None


def test_a_projection_of_a_table_as_wide_as_the_model_is_refused():
    with pytest.raises(SpecError, match="the table is as wide as the model; state embedding_size"):
        loads_spec(spec_text("embedding", "token", {"hidden_size": 16, "projection": "last"}, {"head": "none"}))


@torch.no_grad()
def test_values_that_turn_see_where_a_text_stands_and_others_do_not(ids):
    keys = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    moved = []
    for turns in (False, True):
        model = model_of("mixer", "gqa", {**keys, "rotary_value": turns}, {"head": "none"})
        cache = archc.new_cache(model, batch=3, max_model_len=64)
        at_zero = model(ids, archc.Step.at(0, 9), cache)
        # The same text at positions 7, 8, …, with nothing before it.
        positions = torch.arange(7, 16).unsqueeze(0)
        cache = archc.new_cache(model, batch=3, max_model_len=64)
        later = model(ids, archc.Step(0, positions), cache)
        moved.append(float((later - at_zero).abs().max()))
    assert moved[0] < 1e-5
    assert moved[1] > 1e-4


def test_values_turn_only_where_the_position_turns_something():
    keys = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "rotary_value": True}
    with pytest.raises(GraphError, match="rotary_value turns nothing: the position is none"):
        expand(loads_spec(spec_text("mixer", "gqa", keys, {"position": "none"})))
