"""Symbolic sizes agree with Python's own integers, whatever is added, multiplied, substituted or printed."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archc.ir.size import BATCH, PAST, SEQ, Size, ceil_div, evaluate, minimum, product, simplify, symbol

SYMBOLS = ("batch", "seq", "past", "capacity")
leaves = st.one_of(st.integers(-9, 9), st.sampled_from(SYMBOLS))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "min"]), inner, inner),
        st.tuples(st.just("neg"), inner, st.just(0)),
        st.tuples(st.just("ceil"), inner, st.integers(1, 7)),
    ),
    max_leaves=8,
)
environments = st.fixed_dictionaries({name: st.integers(-20, 50) for name in SYMBOLS})


def number(tree, env):
    """A tree in Python's integers."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return env[tree]
    word, left, right = tree
    a = number(left, env)
    if word == "neg":
        return -a
    if word == "ceil":
        return math.ceil(Fraction(a, right))
    b = number(right, env)
    return {"+": a + b, "-": a - b, "*": a * b, "min": min(a, b)}[word]


def size(tree):
    """The same tree in sizes."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return symbol(tree)
    word, left, right = tree
    a = size(left)
    match word:
        case "neg":
            return -a
        case "ceil":
            return ceil_div(a, right)
        case "+":
            return a + size(right)
        case "-":
            return a - size(right)
        case "*":
            return a * size(right)
        case _:
            return minimum(a, size(right))


@given(trees, environments)
def test_arithmetic_agrees_with_integers(tree, env):
    assert evaluate(size(tree), env) == number(tree, env)


@given(trees, environments)
def test_the_text_is_a_python_expression_of_the_same_value(tree, env):
    # Fractions, so that Python's division is as exact as the polynomial's.
    known = {name: Fraction(value) for name, value in env.items()}
    text = str(size(tree))
    assert eval(text, {"min": min, "ceil": math.ceil, **known}) == number(tree, env)


@given(trees, trees, environments)
def test_substituting_a_symbol_is_evaluating_with_its_value(tree, replacement, env):
    whole = size(tree)
    substituted = whole if isinstance(whole, int) else whole.substitute({"seq": size(replacement)})
    assert evaluate(substituted, env) == number(tree, {**env, "seq": number(replacement, env)})


@given(trees, environments)
def test_substituting_every_symbol_leaves_a_plain_number(tree, env):
    whole = size(tree)
    found = whole if isinstance(whole, int) else whole.substitute(env)
    assert type(found) is int
    assert found == number(tree, env)


@given(trees, trees, trees)
def test_the_laws_of_arithmetic_give_equal_sizes_with_equal_hashes(left, right, other):
    a, b, c = size(left), size(right), size(other)
    for one, two in (
        (a + b, b + a),
        (a * b, b * a),
        ((a + b) * c, a * c + b * c),
        (a - b, -(b - a)),
        ((a * b) * c, a * (b * c)),
        (a + 0, a),
        (a * 1, a),
        (a - a, 0),
    ):
        assert one == two
        assert hash(one) == hash(two)


@given(trees, trees, environments)
def test_sizes_of_different_values_are_unequal(left, right, env):
    different = size(left) != size(right)
    assert different or number(left, env) == number(right, env)


def test_a_size_without_symbols_equals_its_number_and_stands_for_it_in_a_dict():
    two = SEQ - SEQ + 2
    assert isinstance(two, Size)
    assert two == 2
    assert {2: "found"}[two] == "found"
    assert simplify(two) is not two
    assert type(simplify(two)) is int
    assert SEQ != PAST
    assert SEQ != 3


def test_shapes_of_numbers_stay_plain_integers():
    assert type(minimum(3, 4)) is int
    assert type(ceil_div(-7, 2)) is int
    assert ceil_div(-7, 2) == -3
    assert type(product((2, 3, 4))) is int
    assert product((BATCH, 3, SEQ)) == BATCH * SEQ * 3


def test_texts_are_sums_of_products_highest_degree_first():
    assert str(SEQ * SEQ + SEQ * 2 - 1) == "seq*seq + 2*seq - 1"
    assert str(-SEQ + 0) == "-seq"
    assert str(SEQ - SEQ) == "0"
    assert str(minimum(PAST + SEQ, 4) * BATCH) == "batch*min(past + seq, 4)"
    assert str(ceil_div(SEQ + 1, 64)) == "ceil((seq + 1)/64)"


def test_a_symbol_without_a_value_is_an_error():
    with pytest.raises(KeyError, match="past"):
        (SEQ + PAST).evaluate({"seq": 3})
    with pytest.raises(KeyError, match="past"):
        minimum(SEQ + PAST, 4).evaluate({"seq": 3})
