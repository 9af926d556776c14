from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archc.spec.pattern_help import layer_numbers, misfit, ratio
from archc.spec.patterns import Item, PatternError, copies, expand, joined, parse, pattern_of, written

NAMES = st.sampled_from(["kda", "mla", "dense", "moe", "none", "a1_b"])


def _runs(text: str) -> list[str]:
    """``a*3 b`` to its names, by a reading of its own."""
    return [name for part in text.split() for name in [part.split("*")[0]] * int([*part.split("*"), "1"][1])]


@pytest.mark.parametrize(
    ("pattern", "depths", "expected"),
    [
        ("attn", [1, 2, 31], None),
        ("(kda*3 mla)*", [4, 8, 12], "kda*3 mla kda*3 mla"),
        ("(kda*3 mla)* kda*2 mla", [7, 11, 27], "kda*3 mla kda*2 mla"),
        ("dense*3 moe*", [4, 5, 61], "dense*3 moe"),
        ("(dense moe)*", [2, 4, 6], "dense moe"),
        ("(local*5 global)* local*2", [8, 14, 62], "local*5 global local*2"),
        ("(mamba*4 attn mamba*3)*", [8, 16], "mamba*4 attn mamba*3"),
        ("first (local*2 global)*", [4, 7, 22], "first local*2 global"),
        ("window*2 (csa hca)* csa", [5, 7, 43], "window*2 csa hca csa"),
    ],
)
def test_every_row_of_the_grammars_table_fits_its_depths(pattern: str, depths: list[int], expected: str | None) -> None:
    items = parse(pattern)
    for depth in depths:
        assert len(expand(items, depth)) == depth
    if expected is not None:
        assert expand(items, len(_runs(expected))) == tuple(_runs(expected))


@pytest.mark.parametrize(("pattern", "depth"), [("(kda*3 mla)*", 10), ("dense*3 moe*", 3), ("a b", 4), ("a*3", 4)])
def test_a_pattern_never_repeats_or_is_cut_silently(pattern: str, depth: int) -> None:
    assert copies(parse(pattern), depth) is None


def test_nested_parentheses_multiply() -> None:
    assert expand(parse("((mamba mlp)*2 attn)*2 mlp"), 11) == tuple(
        _runs("mamba mlp mamba mlp attn mamba mlp mamba mlp attn mlp")
    )


def test_line_ends_count_as_spaces_and_a_list_is_joined() -> None:
    assert parse("(kda*3\n   mla)*\tkda") == parse("(kda*3 mla)* kda")
    assert joined(["kda*2", "mla"]) == "kda*2 mla"
    assert joined([1, "mla"]) is None
    assert joined([]) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a* b*", "at most one item can be open (found a*, b*)"),
        ("(a* b)*", "an open item can't stand inside parentheses (found a*)"),
        ("kda * 3", "no space inside an item (found kda * 3)"),
        ("( a )", "no space inside an item (found ( a ))"),
        ("a*0", "a count is 1, 2, 3, ... (found 0)"),
        ("a*03", "a count is 1, 2, 3, ... (found 03)"),
        ("(a b", "a parenthesis is not closed"),
        ("a b)", "a parenthesis is closed that was not opened, or holds nothing"),
        ("()", "a parenthesis is closed that was not opened, or holds nothing"),
        ("", "a pattern names at least one layer (found nothing)"),
        ("Kda", "can't be read as a pattern (found Kda)"),
        ("kda,mla", "can't be read as a pattern (found kda,mla)"),
        ("a**", "no space inside an item (found a**)"),
        ("(" * 9 + "a" + ")" * 9, "parentheses nest at most 8 deep"),
    ],
)
def test_a_text_that_is_no_pattern_says_why(text: str, message: str) -> None:
    with pytest.raises(PatternError) as caught:
        parse(text)
    assert caught.value.message == message


def test_eight_parentheses_are_read() -> None:
    assert expand(parse("(" * 8 + "a" + ")" * 8), 1) == ("a",)


def test_lengths_are_added_up_before_anything_is_expanded() -> None:
    items = parse("((((a*999999999999)*999999999999)*999999999999)*999999999999)*9")
    assert misfit(items, 10).message == "far too many layers, but the stack has 10"


@pytest.mark.parametrize(
    ("pattern", "depth", "message", "suggestion"),
    [
        (
            "dense moe",
            26,
            "2 layers, but the stack has 26",
            "Did you mean dense moe* (1 dense, 25 moe) or (dense moe)* (13 of each)?",
        ),
        ("dense moe*25", 7, "26 layers, but the stack has 7", "Did you mean dense moe* (1 dense, 6 moe)?"),
        ("kda*9", 4, "9 layers, but the stack has 4", "Did you mean kda* (4 kda)?"),
        (
            "(local*5 global)*",
            62,
            "62 layers are no multiple of 6: 2 are left over",
            "Say what they are, e.g. (local*5 global)* local*2",
        ),
        (
            "(kda*3 mla)*",
            13,
            "13 layers are no multiple of 4: 1 is left over",
            "Say what they are, e.g. (kda*3 mla)* kda",
        ),
        (
            "(kda*3 mla)* kda*2 mla",
            26,
            "26 layers less 3 are no multiple of 4: 3 are left over",
            "It comes to 23 or 27 layers",
        ),
        ("dense*3 moe*", 3, "at least 4 layers, but the stack has 3", ""),
    ],
)
def test_a_misfit_says_what_would_fit(pattern: str, depth: int, message: str, suggestion: str) -> None:
    error = misfit(parse(pattern), depth)
    assert (error.message, error.suggestion) == (message, suggestion)


def test_a_ratio_becomes_the_pattern_it_stands_for() -> None:
    assert ratio("3:1", ["kda", "mla"], 28) == "3:1 of kda and mla is (kda*3 mla)*"
    assert ratio("3:1", ["kda", "mla"], 26).endswith("over 26 layers 2 are left, so end it, e.g. (kda*3 mla)* kda mla")
    assert ratio("3:1", ["kda"], None) == "3:1 of a and b is (a*3 b)*"
    assert ratio("3-1", ["kda", "mla"], 28) == ""


def test_layer_numbers_tell_their_index_base() -> None:
    full = [4, 8, 12, 16, 20, 24, 27]
    kda = [number for number in range(1, 28) if number not in full]
    lists = {"full_attn_layers": full, "kda_layers": kda}
    expected = (
        "Counted from 1 these lists are (kda*3 mla)* kda*2 mla; counted from 0 they don't fit, 27 layers end at 26"
    )
    assert layer_numbers(lists, ["kda", "mla"], 27) == expected
    assert layer_numbers({"kda_layers": kda}, ["kda", "mla"], 27) == ""
    assert layer_numbers({"kda_layers": ["x"], "mla_layers": []}, ["kda", "mla"], 27) == ""


@given(st.lists(NAMES, min_size=1, max_size=60))
def test_the_printed_pattern_of_a_list_expands_back(names: list[str]) -> None:
    assert expand(parse(pattern_of(names)), len(names)) == tuple(names)


@given(st.lists(NAMES, min_size=1, max_size=5), st.integers(1, 8), st.lists(NAMES, max_size=4))
def test_the_printed_pattern_of_a_repetition_is_no_longer_than_its_parts(
    unit: list[str], times: int, tail: list[str]
) -> None:
    names = unit * times + tail
    assert expand(parse(pattern_of(names)), len(names)) == tuple(names)
    assert len(pattern_of(names)) <= len(" ".join(names))


ITEMS = st.recursive(
    st.builds(Item, NAMES, st.integers(1, 4)),
    lambda inner: st.builds(Item, st.lists(inner, min_size=1, max_size=3).map(tuple), st.integers(1, 3)),
    max_leaves=8,
)


@given(st.lists(ITEMS, min_size=1, max_size=4).map(tuple))
def test_a_written_pattern_is_read_back_as_itself(items: tuple[Item, ...]) -> None:
    assert parse(written(items)) == items


@given(st.text(alphabet="ab(*) 123+\n_A,", max_size=40), st.integers(1, 30))
def test_any_text_is_a_pattern_or_a_pattern_error(text: str, depth: int) -> None:
    try:
        items = parse(text)
    except PatternError:
        return
    if copies(items, depth) is None:
        assert misfit(items, depth).message
    else:
        assert len(expand(items, depth)) == depth
