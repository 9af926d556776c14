"""Tokenizers: how many ids they have, what a spec may say of them, and real ones by the library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from archc.errors import ArchcError, MissingExtraError, SpecError
from archc.expansion import expand
from archc.spec.load import loads_spec
from archc_plugins.tokenizer import library
from archc_plugins.tokenizer.bpe import BPE
from archc_plugins.tokenizer.bytes import Bytes
from archc_plugins.tokenizer.char import Char
from archc_plugins.tokenizer.external import External
from archc_plugins.tokenizer.word import Word
from tests.plugins.specs import tiny

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 3.14 o'clock,  isn't it?\n\tYes: <eos> _is_ text.",
    "敏捷的棕色狐狸跳过了懒狗。你好,世界!语言模型压缩文字,混合English与中文。",
    "Ça va? ぁカナ नमस्ते 🌍👩\u200d👩\u200d👧 e\u0301\r\n\u3000end",
]


def spec(tokenizer: str) -> str:
    return tiny().replace("{kind: external, vocab_size: 40}", tokenizer)


@pytest.fixture
def tokenizers() -> Any:
    return pytest.importorskip("tokenizers")


@pytest.mark.parametrize(
    ("tokenizer", "ids"),
    [
        ("{kind: external, vocab_size: 40}", 40),
        ("{kind: char, vocab_size: 41, unk_token_id: 0}", 41),
        ("{kind: word, vocab_size: 42}", 42),
        ("{kind: bpe, vocab_size: 300, bos_token_id: 1, eos_token_id: [2, 299]}", 300),
        ("bytes", 256),
        ("{kind: bytes, pad_token_id: 0, eos_token_id: 1}", 258),
        ("{kind: bytes, pad_token_id: 256, eos_token_id: 256}", 257),
        ("{kind: bytes, eos_token_id: [256, 258], bos_token_id: 257}", 259),
    ],
)
def test_a_spec_counts_ids(tokenizer: str, ids: int) -> None:
    graph = expand(loads_spec(spec(tokenizer)))
    assert graph.vocab_size == ids
    assert graph.params()["embed_tokens.weight"].shape == (ids, 16)


MISTAKES = [
    # (the tokenizer, the key that is wrong, what is said of it)
    (
        "{kind: external, vocab_size: 40, eos_token_id: 40}",
        "eos_token_id",
        "should be below 40, the number of ids (found 40)",
    ),
    (
        "{kind: char, vocab_size: 9, pad_token_id: [1, 9]}",
        "pad_token_id",
        "should be below 9, the number of ids (found 9)",
    ),
    ("{kind: bytes, eos_token_id: 257}", "eos_token_id", "should be below 257, the number of ids (found 257)"),
    (
        "{kind: bpe, vocab_size: 256, eos_token_id: 0}",
        "vocab_size",
        "should be at least 257, 256 bytes and 1 special tokens (found 256)",
    ),
    (
        "{kind: bpe, vocab_size: 40, byte_level: false}",
        "byte_level",
        "false needs unk_token_id, or characters that are not known would vanish",
    ),
    ("{kind: word, vocab_size: 40, file: /a.json}", "file", "should be relative to the spec (found /a.json)"),
    ("{kind: word, vocab_size: 40, file: 'C:\\a.json'}", "file", "should be relative to the spec (found C:\\a.json)"),
    ("{kind: word, vocab_size: 40, padding_side: centre}", "padding_side", "should be left or right (found centre)"),
    ("{kind: char, vocab_size: -1}", "vocab_size", "should be above 0 (found -1)"),
]


@pytest.mark.parametrize(("tokenizer", "key", "message"), MISTAKES, ids=[text for text, _, _ in MISTAKES])
def test_a_mistake_is_told_where_it_stands(tokenizer: str, key: str, message: str) -> None:
    column = len("tokenizer: ") + tokenizer.index(key) + len(key) + 3
    assert mistakes(tokenizer) == [f"my.yaml:3:{column}: tokenizer.{key}: {message}"]


def test_only_bytes_know_their_number() -> None:
    assert mistakes("bpe") == ["my.yaml:3:1: tokenizer: vocab_size is required"]
    (problem,) = mistakes("{kind: bytes, vocab_size: 256}")
    assert problem.startswith("my.yaml:3:26: tokenizer.vocab_size: unknown key")


def mistakes(tokenizer: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        loads_spec(spec(tokenizer), file="my.yaml")
    return [str(problem) for problem in caught.value.problems]


def made(kind: Any, texts: list[str]) -> Any:
    return kind.load(".") if isinstance(kind, Bytes) else kind.train(texts)


KINDS = {
    "bytes": Bytes(),
    "bytes after special tokens": Bytes(pad_token_id=0, eos_token_id=1, unk_token_id=2),
    "bytes before special tokens": Bytes(eos_token_id=[256, 257]),
    "bytes around a special token": Bytes(bos_token_id=100),
    "char": Char(vocab_size=400, unk_token_id=0, pad_token_id=399),
    "char without an unknown token": Char(vocab_size=400),
    "word": Word(vocab_size=400, unk_token_id=7),
    "bpe": BPE(vocab_size=320, bos_token_id=1, eos_token_id=[0, 319], pad_token_id=0),
    "bpe of bytes alone": BPE(vocab_size=256),
    "bpe of characters": BPE(vocab_size=400, byte_level=False, unk_token_id=3, pad_token_id=0, eos_token_id=0),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_encoded_is_decoded(tokenizers: Any, kind: Any) -> None:
    tokenizer = made(kind, TEXTS)
    for text in (*TEXTS, ""):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert all(0 <= number < kind.ids() for number in ids)
    assert max(tokenizer.get_vocab().values()) < kind.ids()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_special_tokens_have_the_ids_of_the_spec(tokenizers: Any, kind: Any) -> None:
    tokenizer = made(kind, TEXTS)
    for number, name in kind.special_tokens().items():
        assert tokenizer.token_to_id(name) == number
        assert tokenizer.decode([number]) == ""


def test_bytes_are_the_bytes_of_utf_8(tokenizers: Any) -> None:
    for shift, kind in ((0, Bytes(eos_token_id=256)), (3, Bytes(pad_token_id=0, eos_token_id=1, unk_token_id=2))):
        for text in TEXTS:
            assert kind.load(".").encode(text.replace("<eos>", "")).ids == [
                byte + shift for byte in text.replace("<eos>", "").encode()
            ]


def test_characters_and_words_are_counted_as_people_count_them(tokenizers: Any) -> None:
    char = Char(vocab_size=400, unk_token_id=0).train(TEXTS)
    assert char.encode("你好 fox").tokens == list("你好 fox")
    word = Word(vocab_size=400, unk_token_id=0).train(TEXTS)
    assert word.encode("The lazy dog.").tokens == ["The", " lazy", " dog", "."]
    assert word.encode("你好English").tokens == ["你", "好", "English"]


def test_byte_pairs_of_both_languages_make_texts_shorter(tokenizers: Any) -> None:
    kind = BPE(vocab_size=400)
    tokenizer = kind.train(TEXTS * 3)
    for text in TEXTS[:2]:
        assert len(tokenizer.encode(text).ids) < len(text.encode()) * 0.8
    assert tokenizer.get_vocab_size() == 400
    assert kind.train(TEXTS * 3).to_str() == tokenizer.to_str()


def test_what_was_not_learned_is_the_unknown_token_or_an_error(tokenizers: Any) -> None:
    few = Char(vocab_size=4, unk_token_id=2).train(["aab"])
    assert few.encode("abz").ids == [0, 1, 2]
    with pytest.raises(Exception, match="UNK"):
        Char(vocab_size=4).train(["aab"]).encode("z")
    assert BPE(vocab_size=256).train(["aab"]).encode("世").ids != []
    pairs = BPE(vocab_size=9, byte_level=False, unk_token_id=8).train(["aab aab aab"])
    assert pairs.encode("aab世界b").tokens == ["aab", "<unk>", "<unk>", "b"]
    assert pairs.decode(pairs.encode("aab世b").ids, skip_special_tokens=False) == "aab<unk>b"
    assert pairs.decode(pairs.encode("aab世b").ids) == "aabb"


def test_a_vocabulary_is_no_larger_than_stated(tokenizers: Any) -> None:
    for kind in (
        Char(vocab_size=10, unk_token_id=9),
        Word(vocab_size=10, unk_token_id=9, pad_token_id=0),
        BPE(vocab_size=10, byte_level=False, unk_token_id=9, pad_token_id=0),
    ):
        assert kind.train(TEXTS).get_vocab_size() == 10


def test_a_batch_is_padded_as_the_spec_says(tokenizers: Any) -> None:
    right = Bytes(pad_token_id=256).load(".")
    assert [row.ids for row in right.encode_batch(["ab", "a"])] == [[97, 98], [97, 256]]
    left = Bytes(pad_token_id=256, padding_side="left").load(".")
    assert [row.ids for row in left.encode_batch(["ab", "a"])] == [[97, 98], [256, 97]]
    assert [len(row.ids) for row in Bytes().load(".").encode_batch(["ab", "a"])] == [2, 1]
    assert [row.attention_mask for row in right.encode_batch(["ab", "a"])] == [[1, 1], [1, 0]]
    assert [row.attention_mask for row in left.encode_batch(["ab", "a"])] == [[1, 1], [0, 1]]


def test_decoding_joins_pieces_of_words_and_keeps_special_tokens_where_it_is_asked_to(tokenizers: Any) -> None:
    text = "unbelievable 难以置信的 unbelievably"
    for kind in (
        BPE(vocab_size=265, eos_token_id=0),
        BPE(vocab_size=24, byte_level=False, unk_token_id=1, eos_token_id=0),
    ):
        tokenizer = kind.train([text])
        ids = tokenizer.encode(text).ids
        assert len(ids) > 3
        assert tokenizer.decode([*ids, 0]) == text
        assert tokenizer.decode([*ids, 0], skip_special_tokens=False) == text + "<eos>"


def test_byte_pairs_of_characters_join_chinese_ones(tokenizers: Any) -> None:
    texts = ["语言模型 语言模型,机器学习;机器学习的语言模型"]
    tokenizer = BPE(vocab_size=40, byte_level=False, unk_token_id=0).train(texts)
    tokens = tokenizer.encode(texts[0]).tokens
    assert "语言模型" in tokens
    assert "".join(tokens) == texts[0]


def test_kinds_that_learn_nothing_say_so() -> None:
    for tokenizer in ("bytes", "{kind: external, vocab_size: 40}"):
        kind = loads_spec(spec(tokenizer)).tokenizer
        with pytest.raises(ArchcError, match="learns nothing from texts; char, word and bpe do"):
            kind.train(TEXTS)


@pytest.mark.parametrize(
    "kind", [KINDS["bpe"], KINDS["word"], KINDS["char"], KINDS["bytes"]], ids=["bpe", "word", "char", "bytes"]
)
def test_a_file_gives_the_tokenizer_that_was_saved(tokenizers: Any, tmp_path: Path, kind: Any) -> None:
    tokenizer = made(kind, TEXTS)
    (tmp_path / "data").mkdir()
    tokenizer.save(str(tmp_path / "data" / "tokenizer.json"))
    again = kind.model_copy(update={"file": "data/tokenizer.json"}).load(tmp_path)
    assert [again.encode(text).ids for text in TEXTS] == [tokenizer.encode(text).ids for text in TEXTS]
    external = External(vocab_size=kind.ids(), file="data/tokenizer.json").load(tmp_path)
    assert external.get_vocab() == tokenizer.get_vocab()


def test_a_file_that_does_not_fit_the_spec_is_refused(
    tokenizers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(ArchcError, match="can't be read"):
        BPE(vocab_size=300, file="tokenizer.json").load(tmp_path)
    with pytest.raises(ArchcError, match="no file is stated"):
        BPE(vocab_size=300).load(tmp_path)
    for content in (b"{}", b"\xff\xfe", b"null", b""):
        file.write_bytes(content)
        with pytest.raises(ArchcError, match=r"tokenizer\.json: (is no tokenizer|can't be read)"):
            BPE(vocab_size=300, file="tokenizer.json").load(tmp_path)
    Word(vocab_size=30).train(TEXTS).save(str(file))
    with pytest.raises(ArchcError, match="holds a WordLevel model, and bpe is a BPE model"):
        loads_spec(spec("{kind: bpe, vocab_size: 300, file: tokenizer.json}")).tokenizer.load(tmp_path)
    with pytest.raises(ArchcError, match="has the id 29, and the spec says that there are 20 ids"):
        Word(vocab_size=20, file="tokenizer.json").load(tmp_path)
    with pytest.raises(ArchcError, match="has no id 35, the spec's eos_token_id"):
        Word(vocab_size=40, file="tokenizer.json", eos_token_id=35).load(tmp_path)
    monkeypatch.setattr(library, "MAX_FILE_BYTES", 100)
    with pytest.raises(ArchcError, match="at most 100"):
        Word(vocab_size=30, file="tokenizer.json").load(tmp_path)


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for ask in (Bytes().load, lambda folder: BPE(vocab_size=300).train(TEXTS)):
        with pytest.raises(MissingExtraError, match=r"needs the extra 'tokenizers': pip install"):
            ask(".")
