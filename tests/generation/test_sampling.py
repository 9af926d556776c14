"""How ids are drawn, against a reading of the definition that is slow and plain."""

from __future__ import annotations

import math
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from archc.errors import ArchcError
from archc.generation.sampling import Sampling, choose, draw, kept

WAYS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=5),
    Sampling(temperature=1.3, top_p=0.8),
    Sampling(temperature=2.0, top_k=9, top_p=0.5),
    Sampling(temperature=0.1, top_p=0.01),
    Sampling(temperature=1.0, top_k=1),
    Sampling(temperature=1.0, top_k=10_000, top_p=1.0),
]


def plain(logits: list[float], sampling: Sampling) -> dict[int, float]:
    """Id -> probability: sorted, cut to top k, made to probabilities, cut to top p, made to probabilities again."""
    order = sorted(range(len(logits)), key=lambda one: -logits[one])
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = [math.exp((logits[one] - logits[order[0]]) / sampling.temperature) for one in order]
    shares = [weight / sum(weights) for weight in weights]
    chosen: dict[int, float] = {}
    for one, share in zip(order, shares, strict=True):
        if chosen and sum(chosen.values()) >= sampling.top_p:
            break
        chosen[one] = share
    total = sum(chosen.values())
    return {one: share / total for one, share in chosen.items()}


@pytest.mark.parametrize("sampling", WAYS, ids=str)
def test_what_can_be_drawn_is_what_the_definition_says(sampling: Sampling) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = (3 * rng.standard_normal(50)).astype(np.float32)
        ids, shares = kept(logits, sampling)
        want = plain([float(one) for one in logits], sampling)
        assert ids.tolist() == list(want)
        assert shares / shares.sum() == pytest.approx(list(want.values()), rel=1e-9)


def test_ids_are_drawn_as_often_as_their_probability_says() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    generator, draws = np.random.default_rng(3), 20_000
    counts = Counter(draw(logits, Sampling(temperature=1.0), generator) for _ in range(draws))
    for one, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        # Five standard deviations.
        assert abs(counts[one] / draws - share) < 5 * math.sqrt(share * (1 - share) / draws)


def test_an_id_of_no_probability_is_never_drawn() -> None:
    logits = np.array([0.0, -np.inf, -1e30], np.float32)
    generator = np.random.default_rng(0)
    assert {draw(logits, Sampling(temperature=1.0), generator) for _ in range(1000)} == {0}


def test_temperature_zero_takes_the_largest_and_the_first_of_equals() -> None:
    logits = np.array([[1.0, 3.0, 3.0], [5.0, -1.0, 2.0]])
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        assert choose(logits.astype(dtype), Sampling(), []).tolist() == [1, 0]


def test_a_low_temperature_comes_to_the_largest_without_overflow() -> None:
    logits = np.array([1.0, 2.0, -1e4], np.float32)
    assert draw(logits, Sampling(temperature=1e-6), np.random.default_rng(0)) == 1


def test_logits_of_any_dtype_are_drawn_from() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 40))
    sampling = Sampling(temperature=1.0, top_k=4)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        numbers = logits.astype(dtype)
        want = choose(numbers.astype(np.float32), sampling, sampling.generators(3))
        assert choose(numbers, sampling, sampling.generators(3)).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature should be 0 or more \(found -1.0\)"),
        ({"temperature": math.nan}, "temperature should be 0 or more"),
        ({"temperature": math.inf}, "temperature should be 0 or more"),
        ({"top_k": -1}, "top_k should be 0 or more"),
        ({"top_p": 0.0}, "top_p should be above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p should be above 0 and at most 1"),
        ({"seed": -1}, "seed should be 0 or more"),
    ],
)
def test_options_out_of_range_are_errors(options: dict[str, float], message: str) -> None:
    with pytest.raises(ArchcError, match=message):
        Sampling(**options)  # type: ignore[arg-type]
