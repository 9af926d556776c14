"""Tokens that come in pieces over a cache give the logits of the whole text at once."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.torch_backend.examples import (  # noqa: E402
    GQA,
    MIXERS,
    TINY,
    assert_close,
    ids_for,
    lively,
    small_spec,
)

pytestmark = pytest.mark.torch

LENGTH = 23
PLANS = {
    "at once": [LENGTH],
    "token by token": [1] * LENGTH,
    "a prefill, then tokens and chunks": [9, 1, 1, 5, 1, 6],
    "chunks": [4, 6, 5, 8],
}


def feed(model, ids, pieces, max_model_len=None):
    """Logits of pieces of the ids over one cache."""
    cache = archc.new_cache(model, batch=ids.shape[0], max_model_len=max_model_len or ids.shape[1])
    bounds = list(itertools.accumulate(pieces, initial=0))
    with torch.no_grad():
        parts = [model(ids[:, past:end], Step.at(past, end - past), cache) for past, end in itertools.pairwise(bounds)]
    return torch.cat(parts, 1)


@pytest.fixture(scope="module")
def models():
    """Mixer or shipped name -> (model, ids, logits without a cache), made once."""
    known = {}

    def make(name, length=LENGTH):
        if (name, length) not in known:
            model = lively(name if name in TINY else small_spec(MIXERS[name]))
            ids = ids_for(model, 2, length)
            with torch.no_grad():
                known[name, length] = model, ids, model(ids)
        return known[name, length]

    return make


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", [*MIXERS, *TINY])
def test_a_cache_changes_nothing(models, name, plan):
    model, ids, expected = models(name)
    assert_close(feed(model, ids, PLANS[plan]), expected, 2e-5)


@pytest.mark.parametrize("name", TINY)
def test_a_cache_changes_nothing_beyond_chunks_and_windows(models, name):
    model, ids, expected = models(name, 150)
    assert_close(feed(model, ids, [70, 1, 66, 1, 1, 11]), expected, 3e-5)


@pytest.mark.parametrize("piece", [1, 2, 5, 6, 7, 11, 12, 13], ids=lambda n: f"pieces of {n}")
@pytest.mark.parametrize("reach", ["sliding_window", "attention_chunk_size"])
@pytest.mark.parametrize("first", [0, 3, 6, 9], ids=lambda n: f"after {n}")
def test_pieces_around_the_length_of_a_window(rings, reach, piece, first):
    model, ids, expected = rings[reach]
    rest = ids.shape[1] - first
    pieces = [*([first] if first else []), *[piece] * (rest // piece), *([rest % piece] if rest % piece else [])]
    assert_close(feed(model, ids, pieces), expected)


@pytest.fixture(scope="module")
def rings():
    """Windows and chunks of 6 tokens, one layer of each, and what 26 tokens give at once."""
    found = {}
    for reach in ("sliding_window", "attention_chunk_size"):
        model = lively(small_spec(f"{{{GQA}, {reach}: 6}}"))
        ids = ids_for(model, 2, 26)
        with torch.no_grad():
            found[reach] = model, ids, model(ids)
    return found


@pytest.mark.parametrize("reach", ["sliding_window", "attention_chunk_size"])
def test_a_window_or_chunk_is_what_it_says(rings, reach):
    """Logits of a token don't change when what it can't see changes, and do when the last thing it can see does."""
    _, ids, _ = rings[reach]
    layer = lively(small_spec(f"{{{GQA}, {reach}: 6}}", layers=1))
    with torch.no_grad():
        expected = layer(ids)
    token = 20
    first_seen = token - 5 if reach == "sliding_window" else 18
    for changed, differs in ((first_seen - 1, False), (first_seen, True), (token + 1, False)):
        other = ids.clone()
        other[:, changed] = (other[:, changed] + 1) % 64
        with torch.no_grad():
            difference = (layer(other)[:, token] - expected[:, token]).abs().max()
        assert (difference > 1e-4) == differs, f"token {changed} under {token}"


def test_the_last_logits_alone_are_the_last_of_all(models):
    for name in TINY:
        model, ids, expected = models(name)
        cache = archc.new_cache(model, batch=2, max_model_len=LENGTH)
        with torch.no_grad():
            assert_close(model(ids, last_only=True), expected[:, -1:])
            assert_close(model(ids, Step.at(0, LENGTH), cache, last_only=True), expected[:, -1:])


def test_rows_past_the_text_are_never_read(models):
    """A cache that is longer than the text and full of strangers gives the same logits."""
    for name in ("tiny-llama", "tiny-gpt-oss", "tiny-deepseek-v3"):
        model, ids, expected = models(name)
        cache = archc.new_cache(model, batch=2, max_model_len=64)
        for state in cache.values():
            state.fill_(1e4)
        with torch.no_grad():
            parts = [model(ids[:, a:b], Step.at(a, b - a), cache) for a, b in ((0, 9), (9, 14), (14, 15), (15, 23))]
        assert_close(torch.cat(parts, 1), expected, 2e-5)


def test_two_conversations_of_one_model_are_strangers(models):
    model, ids, expected = models("tiny-kimi-linear")
    caches = [archc.new_cache(model, batch=1, max_model_len=LENGTH) for _ in range(2)]
    with torch.no_grad():
        for past, end in ((0, 9), (9, 10), (10, LENGTH)):
            for row, cache in enumerate(caches):
                logits = model(ids[row : row + 1, past:end], Step.at(past, end - past), cache)
                assert_close(logits, expected[row : row + 1, past:end], 2e-5)


def test_pieces_give_the_state_of_the_whole(models):
    for name in TINY:
        model, ids, _ = models(name)
        caches = []
        for pieces in ([LENGTH], PLANS["a prefill, then tokens and chunks"]):
            cache = archc.new_cache(model, batch=2, max_model_len=LENGTH)
            past = 0
            for seq in pieces:
                with torch.no_grad():
                    model(ids[:, past : past + seq], Step.at(past, seq), cache)
                past += seq
            caches.append(cache)
        for state, expected in caches[0].items():
            assert_close(caches[1][state], expected, 3e-5)


@pytest.mark.parametrize("name", TINY)
def test_a_used_cache_serves_the_next_conversation_as_it_is(models, name):
    model, ids, expected = models(name)
    cache = archc.new_cache(model, batch=2, max_model_len=64)
    strangers = ids_for(model, 2, 40, seed=5)
    with torch.no_grad():
        model(strangers, Step.at(0, 40), cache)
        for pieces in ([1, 8, 1, 13], [9, 14], [LENGTH]):
            past, parts = 0, []
            for seq in pieces:
                parts.append(model(ids[:, past : past + seq], Step.at(past, seq), cache))
                past += seq
            assert_close(torch.cat(parts, 1), expected, 2e-5)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", TINY)
def test_a_cache_works_in_every_grad_mode(models, name, mode):
    model, ids, expected = models(name)
    with mode():
        assert_close(feed(model, ids, PLANS["a prefill, then tokens and chunks"]), expected, 2e-5)


@pytest.mark.parametrize("name", TINY)
def test_a_prefill_that_fills_a_cache_trains_like_one_that_does_not(models, name):
    model, ids, _ = models(name)
    gradients = []
    for cache in (None, archc.new_cache(model, batch=2, max_model_len=LENGTH)):
        model.zero_grad()
        step = None if cache is None else Step.at(0, LENGTH)
        model(ids, step, cache).square().mean().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for weight, gradient in gradients[1].items():
        assert_close(gradient, gradients[0][weight], 1e-6)
