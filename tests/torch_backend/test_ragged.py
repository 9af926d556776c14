"""Rows of different lengths, padded on the right, give what each row gives alone."""

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.torch_backend.examples import GQA, MIXERS, TINY, assert_close, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

STRANGER = 7
"""The id in the padding; what it gives would be seen if it leaked."""

PLANS = {
    "from empty": [[9, 4, 1], [6, 3, 8], [1, 1, 1], [1, 1, 1]],
    "rows that wait": [[5, 0, 2], [0, 5, 0], [0, 0, 0], [9, 1, 0], [0, 1, 1], [1, 0, 0], [2, 8, 11]],
    "single tokens": [[1, 1, 0], [1, 0, 1], [1, 1, 1], [7, 3, 5]],
    "rows that overtake": [[1, 12, 6], [15, 1, 3], [1, 1, 1], [2, 7, 13]],
    "rows that are alike": [[8, 8, 8], [5, 5, 5], [1, 1, 1], [7, 7, 7]],
}
MIXERS_HERE = {**MIXERS, "gqa window of 8": f"{{{GQA}, sliding_window: 8}}"}


def check_plan(model, ids, expected, plan, tolerance=2e-5):
    rows = ids.shape[0]
    cache = archc.new_cache(model, batch=rows, max_model_len=48)
    past = [0] * rows
    for new in plan:
        seq = max(1, *new)
        padded = torch.full((rows, seq), STRANGER)
        for row, count in enumerate(new):
            padded[row, :count] = ids[row, past[row] : past[row] + count]
        with torch.no_grad():
            logits = model(padded, Step.ragged(torch.tensor(past), torch.tensor(new), seq), cache)
        for row, count in enumerate(new):
            if count:
                want = expected[row, past[row] : past[row] + count]
                assert_close(logits[row, :count], want, tolerance)
            past[row] += count


@pytest.fixture(scope="module")
def models():
    known = {}

    def make(name):
        if name not in known:
            model = lively(name if name in TINY else small_spec(MIXERS_HERE[name]))
            ids = ids_for(model, 3, 27)
            with torch.no_grad():
                known[name] = model, ids, model(ids)
        return known[name]

    return make


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", [*MIXERS_HERE, *TINY])
def test_ragged_rows_give_what_each_gives_alone(models, name, plan):
    model, ids, expected = models(name)
    check_plan(model, ids, expected, PLANS[plan])


def test_uniform_and_ragged_calls_may_alternate_over_one_cache(models):
    for name in ("gqa short window", "gqa short chunk", "mla", "kda", "gated_deltanet", "mamba2", *TINY):
        model, ids, expected = models(name)
        cache = archc.new_cache(model, batch=3, max_model_len=48)
        calls = [(0, 7, False), (7, 3, True), (10, 1, False), (11, 1, True), (12, 6, False), (18, 9, True)]
        for past, seq, ragged in calls:
            full = torch.full((3,), past), torch.full((3,), seq)
            step = Step.ragged(*full, seq) if ragged else Step.at(past, seq)
            with torch.no_grad():
                logits = model(ids[:, past : past + seq], step, cache)
            assert_close(logits, expected[:, past : past + seq], 2e-5)


@pytest.mark.parametrize("name", ["gqa", "gqa short window", "mla", "kda"])
def test_the_last_logits_of_ragged_rows_are_those_of_their_last_tokens(models, name):
    model, ids, expected = models(name)
    cache = archc.new_cache(model, batch=3, max_model_len=48)
    new = torch.tensor([9, 1, 4])
    with torch.no_grad():
        logits = model(ids[:, :9], Step.ragged(torch.zeros(3, dtype=torch.int64), new, 9), cache, last_only=True)
    assert_close(logits[:, 0], torch.stack([expected[row, count - 1] for row, count in enumerate(new.tolist())]), 2e-5)


@pytest.mark.parametrize("name", ["gqa", "gqa short window", "gqa short chunk", "mla", "kda"])
def test_a_row_without_new_tokens_keeps_its_state(models, name):
    model, ids, _ = models(name)
    cache = archc.new_cache(model, batch=3, max_model_len=48)
    with torch.no_grad():
        model(ids[:, :11], Step.at(0, 11), cache)
        before = {state: tensor.clone() for state, tensor in cache.items()}
        step = Step.ragged(torch.tensor([11, 11, 11]), torch.tensor([4, 0, 1]), 4)
        model(torch.full((3, 4), STRANGER), step, cache)
    for (state, tensor), declared in zip(cache.items(), model.archc_graph.states().values(), strict=True):
        # Rows behind the text may hold padding, to be overwritten.
        kept = (slice(None), slice(0, 11)) if declared.growth == "append" else ()
        torch.testing.assert_close(tensor[1][kept], before[state][1][kept], rtol=0, atol=0)


@pytest.mark.parametrize("name", TINY)
def test_a_row_may_begin_anew_while_others_go_on(models, name):
    model, ids, expected = models(name)
    cache = archc.new_cache(model, batch=3, max_model_len=48)
    # Rows 0 and 2 go on; row 1 first holds somebody else's text, then begins with its own.
    calls = [((0, 0, 0), (9, 6, 4)), ((9, 0, 4), (3, 7, 1)), ((12, 7, 5), (1, 1, 1)), ((13, 8, 6), (8, 5, 9))]
    for number, (past, new) in enumerate(calls):
        padded = torch.full((3, max(new)), STRANGER)
        for row, count in enumerate(new):
            padded[row, :count] = ids[row, past[row] : past[row] + count]
        if number == 0:
            padded[1] = STRANGER
        with torch.no_grad():
            logits = model(padded, Step.ragged(torch.tensor(past), torch.tensor(new), max(new)), cache)
        for row, count in enumerate(new):
            if number or row != 1:
                assert_close(logits[row, :count], expected[row, past[row] : past[row] + count], 2e-5)
