"""Ids to text, piece by piece: no piece ends inside a character, and together they are the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archc.errors import ArchcError
from archc.generation.text import Text, read_tokenizer

tokenizers = pytest.importorskip("tokenizers")


TEXT = "Zwölf Boxkämpfer — 漢字 und 🙂👩‍🚀, naïve\n\tfin"


def of_bytes() -> Text:
    """Each byte a token, as the kind ``bytes`` makes it."""
    vocabulary = {f"<0x{number:02X}>": number for number in range(256)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    made.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    made.add_special_tokens(["<eos>"])
    return Text(made)


def of_pairs() -> Text:
    """Byte-level BPE, whose tokens end inside characters too."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=270, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    made.train_from_iterator([TEXT[:12]], trainer)
    return Text(made)


def of_words() -> Text:
    """Pieces that start with a mark for a space, which decoding drops at the start of a text."""
    words = {word: number for number, word in enumerate(["▁the", "▁quick", "fox", "▁", "<eos>"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="▁"))
    made.decoder = tokenizers.decoders.Metaspace()
    made.add_special_tokens(["<eos>"])
    return Text(made)


def pieces(text: Text, ids: list[int]) -> list[str]:
    reader = text.reader()
    found = [*(reader.push(number) for number in ids), reader.rest()]
    assert "".join(found) == reader.text
    return found


@pytest.mark.parametrize("make", [of_bytes, of_pairs])
def test_a_character_comes_when_it_is_whole(make: Any) -> None:
    text = make()
    ids = text.encode(TEXT)
    assert len(ids) > len(TEXT)
    found = pieces(text, ids)
    assert "".join(found) == TEXT == text.decode(ids)
    assert not [piece for piece in found if "\ufffd" in piece]
    assert found[-1] == ""


def test_spaces_between_words_are_kept() -> None:
    text = of_words()
    assert pieces(text, [0, 1, 2, 1]) == ["the", " quick", "fox", " quick", ""]


@pytest.mark.parametrize("make", [of_bytes, of_pairs])
def test_a_text_that_ends_inside_a_character_says_so_at_its_end_only(make: Any) -> None:
    text = make()
    found = pieces(text, text.encode("ab🙂")[:-1])
    assert "".join(found).startswith("ab\ufffd")
    assert "\ufffd" not in "".join(found[:-1])


def test_a_byte_that_is_no_character_does_not_hold_up_the_others() -> None:
    text = of_bytes()
    found = pieces(text, [0xFF, *b"abcdefgh", *"ö".encode()])
    assert "".join(found) == "\ufffdabcdefghö"
    # It was told once more ids were there than a character has.
    assert found.index("\ufffdabcd") == 4


def test_special_tokens_have_no_text() -> None:
    for text in (of_bytes(), of_pairs(), of_words()):
        end = text._tokenizer.token_to_id("<eos>")
        assert "".join(pieces(text, [end, end])) == ""
    assert pieces(of_bytes(), [97, 256, 98]) == ["a", "", "b", ""]


def test_padding_and_truncation_in_the_file_do_not_touch_a_prompt(tmp_path: Path) -> None:
    made = of_pairs()._tokenizer
    made.enable_truncation(3)
    made.enable_padding(length=100)
    made.save(str(tmp_path / "tokenizer.json"))
    text = read_tokenizer(tmp_path / "tokenizer.json")
    assert text.decode(text.encode(TEXT)) == TEXT


def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(ArchcError, match=r"is no tokenizer\.json"):
        read_tokenizer(tmp_path / "tokenizer.json")
