"""``archc tokenizer`` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

tokenizers = pytest.importorskip("tokenizers")

from archc.cli.tokenizer import show, train  # noqa: E402

Invoke = Callable[..., Result]

ENGLISH = """\
The lighthouse keeper counted the waves, and the waves counted the keeper.
Nobody had told her that counting is a way of waiting; she found out by herself.
"Two thousand and twelve," she wrote -- then she underlined it, twice.
"""
CHINESE = """\
守塔的人数着海浪,海浪也数着守塔的人。
没有人告诉过她,数数就是等待的一种方式;这是她自己发现的。
她写下了「两千零一十二」,然后在下面画了两道线。
"""
SPEC = """
spec_version: 1
name: keeper
dtype: float32
tokenizer: {TOKENIZER}
norm: {kind: rms_norm, eps: 1e-5}
position: {kind: rope, theta: 10000.0}
embedding: {hidden_size: 32, tie_word_embeddings: true, pad_vocab_to_multiple_of: 64}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}
ffns: {mlp: {kind: swiglu, intermediate_size: 48}}
stack: {num_layers: 1, block: pre_norm, mixer: attn, ffn: mlp}
"""
ROLES = "pad_token_id: 0, unk_token_id: 1, bos_token_id: 2, eos_token_id: 3"
KINDS = {
    "char": f"{{kind: char, vocab_size: 120, {ROLES}}}",
    "word": f"{{kind: word, vocab_size: 140, {ROLES}}}",
    "bpe of bytes": f"{{kind: bpe, vocab_size: 330, {ROLES}}}",
    "bpe of characters": f"{{kind: bpe, vocab_size: 200, byte_level: false, {ROLES}}}",
}


@pytest.fixture
def data(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "english.txt", tmp_path / "chinese.txt"]
    for file, text in zip(files, (ENGLISH, CHINESE), strict=True):
        file.write_text(text, encoding="utf-8")
    return files


def write_spec(folder: Path, tokenizer: str) -> Path:
    path = folder / "keeper.yaml"
    path.write_text(SPEC.replace("{TOKENIZER}", tokenizer), encoding="utf-8")
    return path


def learn(invoke: Invoke, folder: Path, tokenizer: str, data: list[Path], *more: object) -> Result:
    words = [word for file in data for word in ("--data", file)]
    return invoke("tokenizer", "train", write_spec(folder, tokenizer), *words, "-o", folder / "tokenizer.json", *more)


@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
def test_what_was_learned_reads_both_languages(
    invoke: Invoke, tmp_path: Path, data: list[Path], tokenizer: str
) -> None:
    done = learn(invoke, tmp_path, tokenizer, data, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [made.token_to_id(name) for name in ("<pad>", "<unk>", "<bos>", "<eos>")] == [0, 1, 2, 3]
    assert told["special"] == {"0": "<pad>", "1": "<unk>", "2": "<bos>", "3": "<eos>"}
    assert told["roles"] == {"bos": [2], "eos": [3], "unk": [1], "pad": [0]}
    assert told["entries"] == made.get_vocab_size() <= told["vocab_size"]
    assert told["table_rows"] == -(-told["vocab_size"] // 64) * 64
    assert (told["characters"], told["bytes"]) == (len(ENGLISH + CHINESE), len((ENGLISH + CHINESE).encode()))
    assert told["unknown_tokens"] == 0
    for text in (ENGLISH, CHINESE, " the waves\n海浪"):
        ids = made.encode(text).ids
        assert made.decode(ids, skip_special_tokens=False) == text
        assert made.decode([2, *ids, 3]) == text
        assert made.decode([2, *ids, 3], skip_special_tokens=False) == f"<bos>{text}<eos>"
    short, long = made.encode_batch(["海", "海浪也数着海浪"])
    assert short.attention_mask == [1] * sum(short.attention_mask) + [0] * short.ids.count(0)
    assert len(short.ids) == len(long.ids)
    assert 0 < short.ids.count(0) == len(short.ids) - sum(short.attention_mask)


def test_the_file_is_what_the_spec_loads(invoke: Invoke, tmp_path: Path, data: list[Path]) -> None:
    from archc.spec.load import load_spec

    learn(invoke, tmp_path, KINDS["bpe of bytes"], data)
    path = write_spec(tmp_path, KINDS["bpe of bytes"].replace("{kind", "{file: tokenizer.json, kind"))
    made = load_spec(path).tokenizer.load(tmp_path)
    assert made.decode(made.encode(CHINESE).ids) == CHINESE
    told = json.loads(invoke("tokenizer", "show", path, "--text", "两千 waves", "--text", "海", "--json").stdout)
    assert (told["kind"], told["vocab_size"], told["table_rows"]) == ("bpe", 330, 384)
    assert told["model"] == "BPE"
    assert told["padding"] == {"direction": "right", "pad_id": 0, "pad_token": "<pad>"}
    assert [row["decoded"] for row in told["texts"]] == ["两千 waves", "海"]
    assert sum(told["texts"][1]["mask"]) < len(told["texts"][1]["mask"]) == len(told["texts"][0]["ids"])


def test_both_sizes_are_shown(invoke: Invoke, tmp_path: Path, data: list[Path]) -> None:
    done = learn(invoke, tmp_path, KINDS["char"], data)
    assert "120 ids" in done.stdout
    assert "128, 8 of them padding, which is never drawn and is cut on export" in done.stdout
    assert f"wrote {tmp_path / 'tokenizer.json'}" in done.stdout
    assert "have no token" in done.stderr
    shown = invoke("tokenizer", "show", tmp_path / "keeper.yaml").stdout
    assert "120 ids" in shown
    assert "128, 8 of them padding" in shown


def test_unknown_characters_are_counted_or_an_error(invoke: Invoke, tmp_path: Path, data: list[Path]) -> None:
    told = json.loads(learn(invoke, tmp_path, f"{{kind: char, vocab_size: 20, {ROLES}}}", data, "--json").stdout)
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert told["entries"] == 20
    assert told["unknown_tokens"] == made.encode(ENGLISH + CHINESE).ids.count(1) > 0
    (tmp_path / "tokenizer.json").unlink()
    done = learn(invoke, tmp_path, "{kind: char, vocab_size: 20}", data)
    assert done.exit_code == 2
    assert "state unk_token_id, or raise vocab_size" in done.stderr
    assert not (tmp_path / "tokenizer.json").exists()


def test_a_file_that_is_there_is_kept(invoke: Invoke, tmp_path: Path, data: list[Path]) -> None:
    (tmp_path / "tokenizer.json").write_text("mine")
    done = learn(invoke, tmp_path, KINDS["char"], data)
    assert (done.exit_code, "--overwrite replaces it" in done.stderr) == (2, True)
    assert (tmp_path / "tokenizer.json").read_text() == "mine"
    assert learn(invoke, tmp_path, KINDS["char"], data, "--overwrite").exit_code == 0
    assert (tmp_path / "tokenizer.json").read_text("utf-8") != "mine"


def test_equal_texts_give_equal_files(invoke: Invoke, tmp_path: Path, data: list[Path]) -> None:
    for tokenizer in KINDS.values():
        texts: list[Any] = []
        for _ in range(2):
            learn(invoke, tmp_path, tokenizer, data, "--overwrite")
            texts.append((tmp_path / "tokenizer.json").read_text("utf-8"))
        assert texts[0] == texts[1]


def test_a_file_is_shown(invoke: Invoke, tmp_path: Path, data: list[Path]) -> None:
    learn(invoke, tmp_path, KINDS["word"], data)
    file = tmp_path / "tokenizer.json"
    done = invoke("tokenizer", "show", file, "--text", "the waves", "--ids", "2,7,3")
    for text in ("WordLevel", "<eos>", "'the waves'", "right, <pad> 0"):
        assert text in done.stdout
    (kept, left) = (
        json.loads(invoke("tokenizer", "show", file, "--ids", "2,7,3", "--json", *more).stdout)["ids"]["text"]
        for more in (["--keep-special"], [])
    )
    assert kept == f"<bos>{left}<eos>"
    assert invoke("tokenizer", "show", tmp_path, "--json").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "bad.json"], "is no tokenizer.json"),
        (["show", "missing.json"], "can't be read"),
        (["show", "tiny-llama", "--text", "x"], "names no tokenizer file"),
        (["show", "good.json", "--ids", "x"], "--ids should be ids as in 1,2,3"),
        (["show", "good.json", "--ids", "-1"], "--ids should be 0 or more"),
        (["train", "tiny-llama", "--data", "latin.txt"], "external learns nothing from texts"),
        (["train", "char.yaml", "--data", "latin.txt"], "latin.txt can't be read as UTF-8"),
        (["train", "char.yaml"], "Missing option '--data'"),
    ],
)
def test_what_a_user_can_fix_ends_in_2(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{}")
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "good.json"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "char.yaml").write_text(SPEC.replace("{TOKENIZER}", KINDS["char"]))
    done = invoke("tokenizer", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "tokenizer.json").exists()


def test_line_ends_are_learned_as_they_are(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    learn(invoke, tmp_path, f"{{kind: char, vocab_size: 50, {ROLES}}}", [tmp_path / "dos.txt"])
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert made.decode(made.encode("two\r\none").ids) == "two\r\none"


def test_every_command_has_help() -> None:
    assert train.help
    assert show.help
