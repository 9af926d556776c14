"""What a caller can do wrong is said clearly."""

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.errors import SpecError  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.torch_backend.examples import MIXERS, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("mixer", ["gqa", "gqa sinks", "mla"])
def test_a_cache_that_is_too_short_is_refused_and_not_written(mixer):
    model = lively(small_spec(MIXERS[mixer]))
    cache = archc.new_cache(model, batch=1, max_model_len=8)
    rows = next(iter(cache.values())).shape[2]
    ids = ids_for(model, 1, rows + 1)
    with torch.no_grad(), pytest.raises(ValueError, match=rf"holds {rows} tokens and 0 \+ {rows + 1} are needed"):
        model(ids, Step.at(0, rows + 1), cache)
    assert all(not tensor.any() for tensor in cache.values())
    with torch.no_grad():
        model(ids[:, :rows], Step.at(0, rows), cache)
        with pytest.raises(ValueError, match="make it with a larger max_model_len"):
            model(ids[:, :1], Step.at(rows, 1), cache)


def test_padding_needs_room_too():
    model = lively(small_spec())
    cache = archc.new_cache(model, batch=2, max_model_len=8)
    step = Step.ragged(torch.tensor([6, 1]), torch.tensor([1, 3]), 3)
    with torch.no_grad(), pytest.raises(ValueError, match=r"holds 8 tokens and 6 \+ 3 are needed"):
        model(ids_for(model, 2, 3), step, cache)


def test_rings_and_fixed_states_have_no_end():
    for mixer in ("gqa short window", "gqa short chunk", "kda"):
        model = lively(small_spec(MIXERS[mixer]))
        cache = archc.new_cache(model, batch=1, max_model_len=8)
        with torch.no_grad():
            model(ids_for(model, 1, 30), Step.at(0, 30), cache)
            assert torch.isfinite(model(ids_for(model, 1, 1), Step.at(30, 1), cache)).all()


@pytest.mark.parametrize(
    ("past", "new", "seq", "message"),
    [
        ([0, 0], [3, 1], 2, r"new should lie within 0 and seq, 2 \(found \[3, 1\]\)"),
        ([0, 0], [-1, 1], 2, r"found \[-1, 1\]"),
        ([-1, 0], [1, 1], 2, "past at 0 or above"),
        ([0, 0, 0], [1, 1], 2, r"both be \(batch,\); found \(3,\) and \(2,\)"),
        ([[0], [0]], [[1], [1]], 2, r"found \(2, 1\) and \(2, 1\)"),
    ],
    ids=str,
)
def test_a_ragged_step_that_makes_no_sense_is_refused(past, new, seq, message):
    with pytest.raises(ValueError, match=message):
        Step.ragged(torch.tensor(past), torch.tensor(new), seq)


def test_a_cache_without_a_step_says_so():
    model = lively(small_spec())
    with pytest.raises(AssertionError, match="a cache needs a step"):
        model(ids_for(model, 1, 3), None, archc.new_cache(model, batch=1, max_model_len=8))


def test_an_unknown_architecture_is_named():
    with pytest.raises(SpecError, match="tiny-lama"):
        archc.build("tiny-lama")


def test_a_module_of_someone_else_has_no_graph():
    with pytest.raises(AssertionError, match=r"not built by archc\.build"):
        archc.cast(torch.nn.Linear(2, 2), "bfloat16")
