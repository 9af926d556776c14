"""Layouts: what they do to numbers, said by hand, and that there and back is nothing, for all of them."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from archc.checkpoint.layouts import shape_there, to_ours, to_theirs  # noqa: E402
from archc.checkpoint.rules import ALTERNATE, SAME, TRANSPOSED, Layout, both, rule  # noqa: E402

Shapes = list[tuple[int, ...]]


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, Shapes]:
    """A layout, and the shapes of weights that fit it."""
    stacked = draw(st.booleans())
    width = draw(st.integers(1, 5))
    lead = (draw(st.integers(1, 4)),) if stacked else ()
    tail = draw(st.sampled_from([(), (width,)] if not stacked else [(width,), ()]))
    count = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["behind", "grouped", "alternate"]))
    groups = draw(st.integers(1, 4))
    if kind == "alternate":
        rows = [draw(st.integers(1, 6))] * count
    else:
        rows = [groups * draw(st.integers(1, 3)) for _ in range(count)]
    transposed = bool(tail) and draw(st.booleans())
    shapes = [(*lead, each, *tail) for each in rows]
    whole = shape_there(Layout(axis=len(lead), transposed=transposed), shapes)
    view = draw(st.sampled_from([None, (-1,), (1, *whole), (*whole[:-1], 1, -1)]))
    layout = Layout(
        groups={"behind": None, "grouped": groups, "alternate": ALTERNATE}[kind],
        axis=len(lead),
        transposed=transposed,
        view=view,
    )
    return layout, shapes


@given(cases())
@settings(max_examples=300, deadline=None)
def test_there_and_back_is_what_it_was(case: tuple[Layout, Shapes]) -> None:
    layout, shapes = case
    theirs = numbered(shape_there(layout, shapes))
    ours = to_ours(layout, theirs, shapes)
    assert [part.shape for part in ours] == shapes
    again = to_theirs(layout, ours)
    assert again.shape == theirs.shape
    assert (again == theirs).all()
    assert again.flags.c_contiguous


@given(cases())
@settings(max_examples=300, deadline=None)
def test_back_and_there_is_what_it_was(case: tuple[Layout, Shapes]) -> None:
    layout, shapes = case
    ours = [numbered(shape) + 1000 * number for number, shape in enumerate(shapes)]
    theirs = to_theirs(layout, ours)
    assert theirs.shape == shape_there(layout, shapes)
    assert sorted(theirs.reshape(-1)) == sorted(np.concatenate([part.reshape(-1) for part in ours]))
    for part, again in zip(ours, to_ours(layout, theirs, shapes), strict=True):
        assert (part == again).all()


def test_nothing_is_done_to_a_tensor_that_is_one_weight() -> None:
    theirs = numbered((3, 2))
    assert to_ours(SAME, theirs, [(3, 2)])[0] is theirs or np.shares_memory(to_ours(SAME, theirs, [(3, 2)])[0], theirs)


def test_parts_stand_one_behind_the_other() -> None:
    query, key = to_ours(SAME, numbered((4, 2)), [(3, 2), (1, 2)])
    assert query.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert key.tolist() == [[6, 7]]


def test_a_group_holds_a_share_of_every_part() -> None:
    # Two groups of two query rows, a key row and a value row each, as Falcon's later form has them.
    shapes = [(4, 1), (2, 1), (2, 1)]
    query, key, value = to_ours(Layout(groups=2), numbered((8, 1)), shapes)
    assert query.tolist() == [[0], [1], [4], [5]]
    assert key.tolist() == [[2], [6]]
    assert value.tolist() == [[3], [7]]


def test_biases_are_grouped_as_their_matrices_are() -> None:
    weight, bias = both("there", "q", "k", groups=3, transposed=True)
    assert (weight.layout.groups, weight.layout.transposed) == (3, True)
    assert (bias.layout.groups, bias.layout.transposed) == (3, False)
    query, key = to_ours(bias.layout, numbered((6,)), [(3,), (3,)])
    assert query.tolist() == [0, 2, 4]
    assert key.tolist() == [1, 3, 5]


def test_rows_that_take_turns() -> None:
    # gpt-oss: even columns are the gate's, odd ones up's, of matrices inputs x outputs, stacked by expert.
    layout = Layout(groups=ALTERNATE, axis=1, transposed=True)
    theirs = numbered((2, 3, 4))
    gate, up = to_ours(layout, theirs, [(2, 2, 3), (2, 2, 3)])
    assert (gate == theirs[..., 0::2].swapaxes(1, 2)).all()
    assert (up == theirs[..., 1::2].swapaxes(1, 2)).all()


def test_inputs_by_outputs() -> None:
    assert shape_there(TRANSPOSED, [(4, 3), (2, 3)]) == (3, 6)
    first, second = to_ours(TRANSPOSED, numbered((3, 6)), [(4, 3), (2, 3)])
    assert (first == numbered((3, 6))[:, :4].T).all()
    assert (second == numbered((3, 6))[:, 4:].T).all()


def test_the_same_numbers_under_another_shape() -> None:
    layout = rule("A_log", "decay", view=(1, 1, -1, 1)).layout
    assert shape_there(layout, [(5,)]) == (1, 1, 5, 1)
    assert to_ours(layout, numbered((1, 1, 5, 1)), [(5,)])[0].tolist() == [0, 1, 2, 3, 4]


def test_parts_that_do_not_stand_side_by_side_are_an_error() -> None:
    with pytest.raises(ValueError, match="don't stand side by side"):
        shape_there(SAME, [(4, 3), (4, 2)])


def test_rows_that_the_groups_do_not_divide_are_an_error() -> None:
    with pytest.raises(ValueError, match="no multiple of 3 groups"):
        shape_there(Layout(groups=3), [(6, 2), (4, 2)])
