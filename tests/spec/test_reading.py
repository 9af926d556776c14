from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from archc.errors import SpecError
from archc.spec.load import load_spec, loads_spec
from archc.spec.reader import read_text
from tests.timing import timed

Mistakes = Callable[..., list[str]]

_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
HOSTILE = {
    "nested keys": "".join(f"{' ' * i}k:\n" for i in range(1400)),
    "nested braces": "{a: " * 10_000,
    "nested brackets": "a: " + "[" * 10_000,
    "nested dashes": "- " * 10_000,
    "nested on one line": "[" * 500_000,
    "billion laughs": _LAUGHS,
    "an alias inside its own anchor": "a: &x {b: *x}",
    "an alias of nothing": "a: *nothing",
    "aliases that deepen": "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 500)),
    "a file too big": "a: " + "x" * (1 << 20),
    "too many events": "a: [" + "x," * 400_000 + "x]",
    "control characters": "a: \x00\x01",
    "half a character": "a: \ud800",
    "an open quote": "'" + "a" * 900_000,
    "a list as a key": "? [a]\n: b",
    "a mapping as a key": "{{a: b}: c}",
    "two documents": "a: 1\n---\nb: 2",
    "no mapping": "- a\n- b",
    "a number": "3",
    "nothing": "",
    "only comments": "# nothing\n" * 1000,
    "only line ends": "\n" * 500_000,
    "tabs": "\t" * 1000,
    "a huge pattern": "mixers: {a: x}\nstack: {mixer: " + "(a) " * 200_000 + "}",
    "a huge name": "mixers: {" + "a" * 800 + ": x}\nstack: {mixer: " + "a" * 800_000 + "}",
    "many siblings of a big base": "mixers:\n  b: {"
    + ", ".join(f"k{i}: 1" for i in range(3000))
    + "}\n"
    + "".join(f"  a{i}: {{extends: b}}\n" for i in range(1500)),
    "a long ring of siblings": "mixers:\n" + "".join(f"  a{i}: {{extends: a{(i + 1) % 2500}}}\n" for i in range(2500)),
    "many broken siblings": "mixers:\n" + "".join(f"  a{i}: {{extends: b{i}}}\n" for i in range(2500)),
    "many unknown kinds": "mixers:\n" + "".join(f"  a{i}: gqa{i}\n" for i in range(6000)),
    "many unknown keys": "".join(f"k{i}: 1\n" for i in range(9000)),
    "the same key": "a: 1\n" * 9000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_answered_soon_with_a_spec_error(text: str) -> None:
    with timed() as taken, pytest.raises(SpecError) as caught:
        loads_spec(text)
    assert taken.seconds < 1.0
    assert len(str(caught.value)) < 100_000


@pytest.mark.parametrize("data", [b"\xff\xfe\x00a", b"\x80abc", os.urandom(4096), b"\x89PNG\r\n\x1a\n", b"a: \xc3\x28"])
def test_a_file_of_other_bytes_is_a_spec_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(data)
    with pytest.raises(SpecError):
        load_spec(tmp_path / "x.yaml")


def test_a_file_too_big_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "big.yaml").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(SpecError, match="larger than 1,048,576 bytes, which no spec is"):
        load_spec(tmp_path / "big.yaml")


def test_what_is_no_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path, tmp_path / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(SpecError, match="is no file"):
            load_spec(path)
    for path in ("nowhere.yaml", "folder/nowhere", "", "\0", "x" * 5000):
        with pytest.raises(SpecError):
            load_spec(path)


def test_a_byte_order_mark_and_other_line_ends_are_read(base: str) -> None:
    assert loads_spec("\ufeff" + base.replace("\n", "\r\n")).name == "small"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("name: !!str other", "my.yaml:2:7: name: tags are not part of the language (found !!str)"),
        (
            "name: !python/object:os.system x",
            "my.yaml:2:7: name: tags are not part of the language (found !python/object:os.system)",
        ),
        ("name: a\nname: b", "my.yaml:3:1: name: written twice (first in line 2)"),
        (
            "name: a\n<<: {a: 1}",
            "my.yaml:3:1: <<: merge keys (<<) are not part of the language. extends does the same for files and siblings",
        ),
        ("name: .nan", "my.yaml:2:7: name: should be finite (found .nan)"),
        ("name: 1e999", "my.yaml:2:7: name: too large a number (found 1e999)"),
    ],
)
def test_what_the_language_leaves_out_of_yaml_is_refused(
    base: str, mistakes: Mistakes, line: str, message: str
) -> None:
    assert message in mistakes(base.replace("name: small", line))


def test_mistakes_of_yaml_and_of_the_language_come_in_one_run(base: str, mistakes: Mistakes) -> None:
    text = base.replace("name: small", "name: !!str small").replace("eps: 1e-5", "epsilon: 1e-5, epsilon: 2")
    assert mistakes(text) == [
        "my.yaml:2:7: name: tags are not part of the language (found !!str)",
        "my.yaml:6:24: norm.epsilon: unknown key. Here this is eps",
        "my.yaml:6:39: norm.epsilon: written twice (first in line 6)",
    ]


def test_aliases_are_written_out(base: str) -> None:
    text = base.replace("dense: {kind", "dense: &d {kind").replace(
        "moe: {kind: zforward, intermediate_size: 32}", "moe: *d"
    )
    spec = loads_spec(text)
    assert spec.ffns["moe"] == spec.ffns["dense"]


def test_marks_count_characters_from_one() -> None:
    node, _ = read_text("é: {ü: 'ä', b: x}\n", "f")
    inner = node.mapping["é"]
    assert inner.mark == ("f", 1, 4)
    assert inner.key_mark("b") == ("f", 1, 13)
    assert inner.mapping["b"].mark == ("f", 1, 16)
    assert inner.mapping["ü"].quoted


def test_a_quoted_number_is_text(base: str, mistakes: Mistakes) -> None:
    assert mistakes(base.replace("num_layers: 4", "num_layers: '4'")) == [
        "my.yaml:14:15: stack.num_layers: should be an integer (found '4'). Did you mean 4?"
    ]
