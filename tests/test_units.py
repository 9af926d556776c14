"""What people write for lengths, sizes and counts, and what it means."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from archc.units import MAX_NUMBER, gib, parse_bytes, parse_count, parse_length, si


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1),
        ("4096", 4096),
        ("131,072", 131_072),
        ("1_000_000", 1_000_000),
        ("128k", 131_072),
        ("128K", 131_072),
        ("1M", 1_048_576),
        ("1m", 1_048_576),
        ("0.5M", 524_288),
        ("1e6", 1_000_000),
        ("1e15", 10**15),
        (" 4k ", 4096),
    ],
)
def test_a_length_is_in_binary_units(text: str, tokens: int):
    assert parse_length(text) == tokens


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("2GiB", 2**31),
        ("2 gib", 2**31),
        ("80 GB", 80 * 10**9),
        ("1.5TB", 1_500_000_000_000),
        ("512MiB", 2**29),
        ("24kB", 24_000),
        ("24KiB", 24_576),
        ("100B", 100),
        ("2147483648", 2**31),
        ("80e9", 80 * 10**9),
    ],
)
def test_a_size_is_decimal_or_binary_by_its_unit(text: str, count: int):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7e9", 7 * 10**9),
        ("7B", 7 * 10**9),
        ("405b", 405 * 10**9),
        ("15.6T", 15_600_000_000_000),
        ("0.1T", 100_000_000_000),
        ("14.8e12", 14_800_000_000_000),
        ("1.5k", 1500),
        ("540.35B", 540_350_000_000),
        ("7,241,732,096", 7_241_732_096),
        ("999999999999999999", 999_999_999_999_999_999),
    ],
)
def test_a_count_is_decimal_and_exact(text: str, count: int):
    assert parse_count(text) == count


PARSERS = (parse_length, parse_bytes, parse_count)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "k",
        "-3",
        "+3",
        "4q",
        "4k4",
        "1,00",
        "1__0",
        "0x10",
        "nan",
        "inf",
        "1e",
        "1e-3",
        "½",
        "٣",
        "9" * 1000,
        "1e99",
    ],
)
def test_what_is_no_number_is_said_with_what_was_written(parse: Callable[[str], int], text: str):
    with pytest.raises(ValueError, match=r"'.*'") as found:
        parse(text)
    assert len(str(found.value)) < 200


@pytest.mark.parametrize("parse", PARSERS)
def test_zero_and_too_much_are_out_of_range(parse: Callable[[str], int]):
    assert parse(str(MAX_NUMBER)) == MAX_NUMBER
    for text in ("0", "0.0", str(MAX_NUMBER + 1), "1e19"):
        with pytest.raises(ValueError, match="at least 1 and at most 10\\^18"):
            parse(text)


def test_a_part_of_a_token_or_byte_is_an_error():
    with pytest.raises(ValueError, match=r"'0\.9B' should be at least 1"):
        parse_bytes("0.9B")
    with pytest.raises(ValueError, match=r"'1\.0005k' is no whole number of tokens: 1024\.5120"):
        parse_length("1.0005k")
    with pytest.raises(ValueError, match=r"'1\.0000000001B' is no whole number"):
        parse_count("1.0000000001B")


def test_a_unit_that_could_be_either_is_no_unit_of_bytes():
    with pytest.raises(ValueError, match=r"'2G' is no number of bytes; sizes are written as 2GB .* or 2GiB"):
        parse_bytes("2G")


def test_what_is_printed_keeps_few_digits_however_large():
    assert [gib(n) for n in (1000, 3 << 30, 5 << 50, (1 << 90) - 1, 1 << 90)] == [
        "1000 B",
        "3.000 GiB",
        "5.000 PiB",
        "1024.000 YiB",
        "1.238e27 B",
    ]
    assert [si(n) for n in (999, 48_120_000_000, 10**20, 10**21)] == ["999", "48.12 G", "100.00 E", "1.00e21"]
