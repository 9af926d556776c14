from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from archc.spec.scalars import ScalarError, plain_number, resolve
from archc.spec.values import ONE, Dtype, Scale

NAMES = {"hidden_size": 64.0, "head_dim": 16.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (2, 2.0),
        (0.25, 0.25),
        (-1.5, -1.5),
        ("1/6", 1 / 6),
        ("1/128", 1 / 128),
        ("sqrt(hidden_size)", 8.0),
        ("1/sqrt(head_dim)", 0.25),
        ("1/sqrt(168)", 1 / math.sqrt(168)),
        ("2.5/sqrt(4)", 1.25),
        ("1e-1/2", 0.05),
    ],
)
def test_a_scale_multiplies_by(text: Any, value: float) -> None:
    scale = Scale.parse(text)
    assert scale.resolve(NAMES) == pytest.approx(value, rel=1e-15)
    assert Scale.parse(scale.plain()) == scale


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "3",
        "010",
        "1/0",
        "/2",
        "2sqrt(4)",
        "sqrt(0)",
        "sqrt(-1)",
        "sqrt(1/2)",
        "1/hidden_size",
        "1 / 2",
        "1_0/2",
        "nan",
        True,
        None,
        [1],
        math.inf,
    ],
)
def test_anything_else_is_no_scale(text: Any) -> None:
    with pytest.raises(PydanticCustomError, match="should be a scale"):
        Scale.parse(text)


def test_a_scale_knows_the_name_it_uses() -> None:
    assert Scale.parse("1/sqrt(head_dim)").names_used == ("head_dim",)
    assert ONE.names_used == ()
    assert Scale.parse("1/sqrt(head_dim)").fault({"head_dim": 16}) is None
    fault = Scale.parse("1/sqrt(head)").fault({"head_dim": 16})
    assert fault is not None
    assert fault.message() == "no value called head here"
    assert fault.context is not None
    assert fault.context["suggestion"] == "Did you mean 1/sqrt(head_dim)?"
    assert Scale.parse("sqrt(zero)").fault({"zero": 0}) is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("0x1F", 31),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("3:1", "3:1"),
        ("no", "no"),
        ("yes", "yes"),
        ("True", "True"),
        ("2024-01-01", "2024-01-01"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("128K", "128K"),
        ("1/6", "1/6"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_scalars_are_read_as_yaml_1_2_reads_them(text: str, value: Any) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


@pytest.mark.parametrize("text", [".nan", ".inf", "-.inf", "1e999", "9" * 30, "9" * 5000, "0x" + "f" * 30])
def test_numbers_that_count_nothing_are_refused(text: str) -> None:
    with pytest.raises(ScalarError):
        resolve(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("010", "10"),
        ("1_000", "1000"),
        ("128K", "131072"),
        ("1,024", "1024"),
        ("32", "32"),
        ("0x", ""),
        ("abc", ""),
        ("7B", "7000000000"),
    ],
)
def test_near_misses_stand_for_plain_numbers(text: str, number: str) -> None:
    assert plain_number(text) == number


def test_a_dtype_is_torchs_name() -> None:
    adapter = TypeAdapter(Dtype)
    assert adapter.validate_python("float8_e4m3fn") == "float8_e4m3fn"
    for short, long in (("bf16", "bfloat16"), ("fp16", "float16"), ("bfloat", "bfloat16")):
        with pytest.raises(ValidationError) as caught:
            adapter.validate_python(short)
        context = caught.value.errors()[0]["ctx"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
        assert context["message"] == f"unknown (found {short})"
        assert context["suggestion"].startswith(f"Did you mean {long}?")
