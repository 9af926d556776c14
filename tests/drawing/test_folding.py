"""Layers written short: unfolding gives them back, and what a reader would fold is folded."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archc.drawing.folding import Fold, beginnings, fold, unfold, written
from tests.timing import timed


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("a", "a"),
        ("aaaa", "a*4"),
        ("abab", "(a b)*2"),
        ("aaabaaabaaab", "(a*3 b)*3"),
        ("aaabaaabaa", "(a*3 b)*2 a*2"),
        ("abbbabbbc", "(a b*3)*2 c"),
        ("aaab" * 6 + "aab", "(a*3 b)*6 a*2 b"),
        ("ababab" + "acb" + ("abababab" + "acb") * 3 + "ababababab", "((a b)*3 a c b a b)*4 (a b)*4"),
        ("abcd", "a b c d"),
    ],
)
def test_runs_and_patterns_are_folded(layers: str, expected: str):
    assert written(fold(list(layers))) == expected


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from("abc"), max_size=60), st.sets(st.integers(0, 60)))
def test_unfolding_gives_the_layers_again(layers: list[str], starts: set[int]):
    folds = fold(layers, starts)
    assert list(unfold(folds)) == layers
    assert sum(one.length for one in folds) == len(layers)


def test_a_pattern_begins_where_it_is_told_to_where_that_is_as_short():
    layers = list("xaab" + "aaab" * 5 + "aab")
    assert written(fold(layers)) == "x a*2 (b a*3)*5 b a*2 b"
    assert written(fold(layers, {4})) == "x a*2 b (a*3 b)*5 a*2 b"
    # A start that would leave fewer copies is not taken.
    assert written(fold(list("ab" * 4), {1})) == "(a b)*4"


def test_beginnings_are_the_layers_that_start_a_copy():
    assert beginnings(fold(list("x" + "aab" * 3))) == {1, 4, 7}
    assert beginnings(fold(list("aaaa"))) == set()


def test_a_fold_is_one_layer_or_a_row():
    (one,) = fold(list("abab"))
    assert one == Fold(row=(Fold("a"), Fold("b")), count=2)
    assert one.length == 4


def test_ten_thousand_layers_are_folded_at_once():
    with timed() as taken:
        assert len(fold(["a", "b", "b"] * 3333)) == 1
        # No two patterns alike.
        assert len(fold([str(number) for number in range(10_000)])) == 10_000
    assert taken.seconds < 10
