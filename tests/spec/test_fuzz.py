"""Whatever the text, the answer is a spec or a SpecError."""

from __future__ import annotations

import re
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archc.errors import ArchcError, SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.spec.load import loads_spec
from archc.spec.shipped import shipped_specs

SPECS = [path.read_text() for path in shipped_specs().values() if "\nextends:" not in path.read_text()]
NUMBERS = ["0", "1", "3", "-1", "0.5", "1e-30", "1e300", "65537", "1000000000", "9223372036854775807"]
PIECES = st.sampled_from(
    [
        *(
            "null",
            "~",
            "{}",
            "[]",
            "*a",
            "&a ",
            "<<: ",
            "!x ",
            "3",
            "-1",
            "1e400",
            "true",
            "no",
            "'",
            '"',
            "{",
            "}",
            "[",
            "]",
        ),
        *(
            ":",
            ", ",
            "- ",
            "#",
            "\n",
            "\t",
            "  ",
            "kind",
            "extends: ",
            "kda",
            "(",
            ")",
            "*",
            "*3",
            "+",
            "none",
            ".nan",
            "0x10",
        ),
        *(
            "1_0",
            "128K",
            "sqrt(hidden_size)",
            "1/0",
            "\u2028",
            "\x00",
            "é",
            "? ",
            "|",
            "> ",
            "%",
            "@",
            "policy",
            "a: {b: c}",
        ),
    ]
)
EDITS = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 25), PIECES | st.just("")), min_size=1, max_size=6)
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _load(text: str) -> None:
    with suppress(SpecError):
        spec = loads_spec(text)
        assert len(spec.schedule()) == spec.main.num_layers


@QUICK
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    _load(text)


@QUICK
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_row_of_pieces(text: str) -> None:
    _load(text)


@QUICK
@given(st.sampled_from(SPECS), EDITS)
def test_any_edit_of_a_valid_spec(text: str, edits: list[tuple[int, int, str]]) -> None:
    for at, cut, piece in edits:
        at %= len(text) + 1
        text = text[:at] + piece + text[at + cut :]
    _load(text)


@QUICK
@given(st.sampled_from(SPECS), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=3))
def test_any_exchange_of_words_in_a_valid_spec(text: str, swaps: list[tuple[int, int]]) -> None:
    words = text.replace(",", " ,").replace("}", " }").split(" ")
    for first, second in swaps:
        words[first % len(words)] = words[second % len(words)]
    _load(" ".join(words))


@QUICK
@given(st.text(max_size=40), st.text(max_size=40))
def test_any_override(path: str, value: str) -> None:
    with suppress(SpecError):
        loads_spec(SPECS[0], overrides=[f"{path}={value}", f"stack.ffn={value}", f"mixers.{path}={value}"])


@QUICK
@given(
    st.sampled_from(SPECS), st.lists(st.tuples(st.integers(0, 400), st.sampled_from(NUMBERS)), min_size=1, max_size=3)
)
def test_any_number_in_a_valid_spec_is_counted_or_refused(text: str, changes: list[tuple[int, str]]) -> None:
    for at, number in changes:
        places = list(re.finditer(r"(?<=[a-z]: )[0-9][0-9.e+-]*", text))
        place = places[at % len(places)]
        text = text[: place.start()] + number + text[place.end() :]
    with suppress(ArchcError):
        estimate(expand(loads_spec(text)))
