"""Pictures of maps: panels, labels, scales, and what no font has."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from archc.attention_maps.figure import MAX_PANELS, Panel, drawn, page  # noqa: E402

pytestmark = pytest.mark.torch


def panel(size: int, title: str = "a map", token: str = "x") -> Panel:
    return Panel(title, torch.eye(size), [f"{token}{i}" for i in range(size)], [f"{token}{i}" for i in range(size)])


def texts(svg: bytes) -> str:
    return svg.decode("utf-8")


def test_tokens_stand_at_the_axes_while_they_can_be_read():
    assert ">x0<" in texts(drawn([panel(3)], "t", "svg"))
    assert ">x0<" not in texts(drawn([panel(60)], "t", "svg"))


def test_tokens_that_no_font_draws_and_formulas_that_are_none():
    svg = texts(drawn([panel(2, token="\u732b"), panel(2, token="$\\frac\n")], "$t$", "svg"))
    assert "\u732b0" in svg
    assert "$\\frac\u00b70" in svg
    assert drawn([panel(2, token="\u732b")], "t", "png").startswith(b"\x89PNG")


def test_a_picture_has_so_many_panels_and_says_how_many_there_are():
    svg = texts(drawn([panel(2, f"map {number}.") for number in range(MAX_PANELS + 3)], "t", "svg"))
    assert f"map {MAX_PANELS - 1}." in svg
    assert f"map {MAX_PANELS}." not in svg
    assert f"the first {MAX_PANELS} of {MAX_PANELS + 3}" in svg


def test_a_map_of_zeros_is_drawn():
    nothing = Panel("nothing", torch.zeros(2, 3), ["a", "b"], ["c", "d", "e"])
    assert ">nothing<" in texts(drawn([nothing], "t", "svg"))


def test_a_page_escapes_what_it_is_given():
    made = page(drawn([panel(2)], "t", "svg"), "<b>", ("a<", "b"), [("<i>", "1")]).decode()
    assert "<title>&lt;b&gt;</title>" in made
    assert "<th>a&lt;</th>" in made
    assert "<td>&lt;i&gt;</td>" in made
    assert "<?xml" not in made
