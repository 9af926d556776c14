"""Each file of this folder is a wrong spec; its last lines say what ``archc validate`` answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from archc import registry
from archc.cli.main import archc
from archc.spec.reader import MAX_BYTES

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("*.yaml"))
SAYS = "# says: "

GOOD = """\
spec_version: 1
name: small
tokenizer: {kind: external, vocab_size: 100}
embedding: {hidden_size: 64, tie_word_embeddings: true}
position: {kind: rope, theta: 10000.0}
norm: {kind: rms_norm, eps: 1e-5}
mixers:
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16}
ffns:
  mlp: {kind: swiglu, intermediate_size: 128}
stack: {num_layers: 8, block: pre_norm, mixer: attn, ffn: mlp}
"""


def answer(*arguments: str) -> list[str]:
    """What the command line prints of bad files, in this process."""
    done = CliRunner().invoke(archc, ["validate", *arguments], catch_exceptions=False)
    assert done.exit_code == 2
    assert done.stdout == ""
    return done.stderr.splitlines()


def expected(name: str) -> list[str]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    said = [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS)]
    # Which kinds there are changes more often than what is said of them.
    for family in registry.FAMILIES:
        said = [line.replace(f"<{family}>", ", ".join(registry.names(family))) for line in said]
    assert said, name
    return said


def test_there_are_many():
    assert len(FILES) >= 100


@pytest.mark.parametrize("name", FILES)
def test_a_bad_spec_gets_exactly_these_messages(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(HERE)
    said = expected(name)
    problems = f"{len(said)} problem{'s' if len(said) != 1 else ''}"
    assert answer(name) == [f"archc: {problems} in {name}", *(f"  {line}" for line in said)]


@pytest.mark.parametrize("name", FILES)
def test_its_problems_are_data_too(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(HERE)
    done = CliRunner().invoke(archc, ["validate", name, "--json"], catch_exceptions=False)
    assert done.exit_code == 2
    data = json.loads(done.stdout)
    assert data["files"] == [{"file": name, "valid": False}]
    said = []
    for problem in data["problems"]:
        assert set(problem) == {"path", "file", "line", "column", "code", "message", "suggestion", "severity"}
        assert problem["severity"] == "error"
        assert problem["code"]
        place = ":".join(str(part) for part in (problem["file"], problem["line"], problem["column"]) if part)
        text = ": ".join(part for part in (place, problem["path"], problem["message"]) if part)
        said.append(". ".join(part for part in (text, problem["suggestion"]) if part))
    assert said == expected(name)


@pytest.mark.parametrize("name", FILES[::15])
@pytest.mark.parametrize("command", ["validate", "estimate"])
def test_no_traceback_is_printed(name: str, command: str):
    done = subprocess.run([sys.executable, "-m", "archc", command, name], cwd=HERE, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("archc: ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "bad.yaml: the spec is empty"),
        (b" \n\t \n", "bad.yaml:2:1: not YAML: a tab can't indent; use spaces"),
        (b"\xef\xbb\xbf", "bad.yaml: the spec is empty"),
        (b"\x7fELF\x02\x01\x01\x00\xff", "bad.yaml:1:1: not UTF-8 text (byte 0xff)"),
        (b"spec_version: 1\nname: \xe9t\xe9\n", "bad.yaml:2:1: not UTF-8 text (byte 0xe9)"),
        (b"\x00\x01\x02", "bad.yaml: not YAML: control characters are not allowed"),
        (GOOD.encode("utf-16"), "bad.yaml:1:1: not UTF-8 text (byte 0xff)"),
        (b"a" * (MAX_BYTES + 1), "bad.yaml: larger than 1,048,576 bytes, which no spec is"),
        (b"a: [" * 1000, "bad.yaml:1:65: nested more than 32 deep"),
        (b"a: 1\n" * 9000, "bad.yaml:2:1: a: written twice (first in line 1)"),
        (b"- 1\n" * 30000, "bad.yaml:19998:3: too long: more than 20,000 YAML events"),
    ],
    ids=["empty", "blank", "mark", "binary", "latin", "control", "utf16", "large", "deep", "repeated", "long"],
)
def test_bytes_that_are_no_spec(data: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_bytes(data)
    assert said in [line.strip() for line in answer("bad.yaml")]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.yaml", "missing.yaml: no such file"),
        ("folder.yaml", "folder.yaml: is no file"),
        ("none/such.yaml", "none/such.yaml: no such file"),
        ("file.yaml/inner.yaml", "file.yaml/inner.yaml: can't be read: Not a directory"),
        ("llama-3-8", "llama-3-8: no such file, and no shipped spec of that name. Did you mean llama-3-8b?"),
        ("*.none", "*.none: matches no file"),
        ("n" * 300 + ".yaml", f"{'n' * 60}…: can't be read: File name too long"),
    ],
)
def test_files_that_cannot_be_read(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "file.yaml").write_text(GOOD)
    assert [line.strip() for line in answer(name)[1:]] == [said]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stack.num_layers=x", "stack.num_layers: should be an integer (found 'x')"),
        ("norm.eps=1e400", "norm.eps: too large a number (found 1e400)"),
        ("norm.eps=[", "not YAML: did not find expected node content while parsing a flow node"),
        ("norm.eps", "should be path=value, as in stack.num_layers=7"),
        ("norm..eps=1", "should be path=value, as in stack.num_layers=7"),
        ("norm.epsilon=1", "norm.epsilon: unknown key. Here this is eps"),
        ("extends=other.yaml", "a file's parent can't be set"),
        (".".join("a" * 17) + "=1", "a path has at most 16 steps"),
        ("mixers=null", "mixers is required"),
        ("stack.mixer=mlp", "stack.mixer: mlp is an ffn; this pattern names mixers"),
    ],
)
def test_an_override_is_blamed_by_itself_and_the_file_by_its_name(
    override: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    done = CliRunner().invoke(archc, ["estimate", "good.yaml", "--set", override], catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (2, "")
    first, *lines = done.stderr.splitlines()
    assert first == "archc: 1 problem in good.yaml"
    (line,) = lines
    assert line == f"  --set {override}: {said}"


def test_a_good_spec_passes_and_so_do_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        (tmp_path / f"good-{number}.yaml").write_text(GOOD)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "bad.yaml").write_text("name: 3\n")
    done = CliRunner().invoke(archc, ["validate", "good-*.yaml", "good-0.yaml", "llama-3-8b"], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == ["good-0.yaml: ok", "good-1.yaml: ok", "good-2.yaml: ok", "llama-3-8b: ok"]
    done = CliRunner().invoke(archc, ["validate", "**/*.yaml", "--json"], catch_exceptions=False)
    assert done.exit_code == 2
    files = json.loads(done.stdout)["files"]
    assert {entry["file"]: entry["valid"] for entry in files} == {
        "deep/bad.yaml": False,
        **{f"good-{number}.yaml": True for number in range(3)},
    }
