"""Texts become ids once, in order, whatever their size; what was made is used again, and never half made."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from archc.errors import ArchcError
from archc.spec.load import load_spec
from archc.training.data import documents, sources, tokenising
from archc.training.data.arrays import GrowingArray, map_array
from archc.training.data.manifest import DOCUMENTS, MANIFEST, shard_name
from archc.training.data.opening import open_data, prepare_data, read_data
from archc.training.data.vocabulary import vocabularies_of
from archc.training.sample_text import sample_text
from tests.training.texts import CAUSAL, EOS, PLAIN, data, ended, vocabularies

pytestmark = pytest.mark.torch

LETTERS = "abc déf\n\n \t中文字漢🙂\u0301\r\n"


def unicode_text(seed, length):
    chance = random.Random(seed)
    return "".join(chance.choice(LETTERS) for _ in range(length))


def ids_of(tokens):
    return tokens.read(0, len(tokens)).tolist()


def opened(folder, spec=CAUSAL, **more):
    return open_data(folder / "in", vocabularies=vocabularies(spec), cache=folder / "cache", **more)


def written(folder, **files):
    (folder / "in").mkdir()
    for name, text in files.items():
        (folder / "in" / name.replace("_", ".")).write_bytes(text if isinstance(text, bytes) else text.encode())


def test_files_follow_each_other_by_name_in_depth_with_an_end_behind_each(tmp_path):
    written(tmp_path, b_txt="two", a_txt="one", d_md="four")
    (tmp_path / "in" / "c").mkdir()
    (tmp_path / "in" / "c" / "deep.txt").write_text("three")
    (tmp_path / "in" / ".hidden").write_text("no")
    tokens = opened(tmp_path)
    assert ids_of(tokens) == ended("one") + ended("two") + ended("three") + ended("four")
    assert tokens.starts.tolist() == [0, 4, 8, 14, 19]


def test_lines_of_json_are_documents_and_other_keys_are_left(tmp_path):
    lines = [json.dumps({"text": text, "id": 7}) for text in ("first", "se\ncond", "", "third")]
    written(tmp_path, a_jsonl="\n".join(lines) + "\n\n")
    tokens = opened(tmp_path)
    assert ids_of(tokens) == ended("first") + ended("se\ncond") + ended("third")
    assert tokens.documents == 3
    assert tokens.manifest.left_out == 1


def test_packed_files_and_a_byte_order_mark_are_read(tmp_path):
    written(tmp_path, a_txt=b"\xef\xbb\xbfone")
    (tmp_path / "in" / "b.txt.gz").write_bytes(gzip.compress(b"two"))
    (tmp_path / "in" / "c.jsonl.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf{"text": "three"}\n'))
    assert ids_of(opened(tmp_path)) == ended("one") + ended("two") + ended("three")


def test_without_special_tokens_documents_simply_follow_each_other(tmp_path):
    written(tmp_path, a_txt="one", b_txt="two")
    tokens = opened(tmp_path, PLAIN)
    assert bytes(ids_of(tokens)) == b"onetwo"
    assert tokens.starts.tolist() == [0, 3, 6]


def test_a_begin_stands_in_front_of_each_document_and_not_of_each_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 8)
    spec = load_spec("tiny-llama", ["tokenizer={kind: bytes, bos_token_id: 257, eos_token_id: 256}"])
    written(tmp_path, a_txt="a text of some length", b_txt="b")
    assert ids_of(opened(tmp_path, spec)) == [257, *b"a text of some length", 256, 257, *b"b", 256]


def test_ids_are_those_of_the_text_across_blocks_pieces_batches_and_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 1009)
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 3001)
    monkeypatch.setattr(tokenising, "_BATCH_CHARACTERS", 10_000)
    texts = [unicode_text(seed, 40_000) for seed in range(3)]
    tokens = data(tmp_path, CAUSAL, texts, shard_tokens=20_011)
    whole = [number for text in texts for number in ended(text)]
    assert ids_of(tokens) == whole
    assert tokens.manifest.shards == -(-len(whole) // 20_011) > 10
    chance = random.Random(0)
    for _ in range(50):
        start = chance.randrange(len(whole))
        end = min(len(whole), start + chance.choice((1, 100, 50_000)))
        assert tokens.read(start, end).tolist() == whole[start:end]


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_a_long_text_is_tokenised_in_pieces_as_it_is_whole(tmp_path, kind):
    text = sample_text(seed=3, characters=300_000)
    spec = load_spec("tiny-llama", [f"tokenizer={{kind: {kind}, vocab_size: 600, unk_token_id: 0}}"])
    made = spec.tokenizer.train([text[:50_000]])
    tokens = data(tmp_path, spec, [text], tokenizer=made)
    assert len(text) > 2 * documents.PIECE_CHARACTERS
    assert ids_of(tokens) == made.encode(text, add_special_tokens=False).ids


def test_pieces_end_between_lines_else_behind_one_else_before_a_space_else_anywhere(monkeypatch):
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 10)

    def cut(text):
        return [piece.text for piece in documents._pieces(iter([text]), "")]

    assert cut("aaaaaa\nb\n\n  cc") == ["aaaaaa\n", "b\n\n  cc"]
    assert cut("aaaaaa\n\n\n  cccc") == ["aaaaaa\n\n\n", "  cccc"]
    assert cut("aaaaaaa bbb ccc") == ["aaaaaaa", " bbb ccc"]
    assert cut("abcdefghijklmnopqrstuvw") == ["abcdefghij", "klmnopqrst", "uvw"]
    assert cut("0123456789") == ["0123456789"]


def test_sixteen_bits_are_enough_until_they_are_not(tmp_path):
    written(tmp_path, a_txt="text")
    assert opened(tmp_path).manifest.dtype == "uint16"
    wide = load_spec("tiny-llama", ["tokenizer={kind: external, vocab_size: 65537}"])
    tokenizer = CAUSAL.tokenizer.load(".")
    tokens = open_data(tmp_path / "in", vocabularies=vocabularies(wide, tokenizer), cache=tmp_path / "wide")
    assert tokens.manifest.dtype == "uint32"
    assert ids_of(tokens) == list(b"text")


def test_the_files_are_what_numpy_reads(tmp_path):
    tokens = data(tmp_path, CAUSAL, ["abc"])
    assert np.load(tokens.folder / shard_name(0)).tolist() == ended("abc")
    assert np.load(tokens.folder / DOCUMENTS).tolist() == [0, 4]


@pytest.mark.parametrize("length", [0, 1, 12345])
def test_a_growing_array_is_an_npy_file(tmp_path, length):
    with GrowingArray(tmp_path / "a.npy", "int64") as array:
        for start in range(0, length, 1000):
            array.append(np.arange(start, min(length, start + 1000)))
        array.close()
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.arange(length))
    assert map_array(tmp_path / "a.npy", "int64", length).shape == (length,)


def stamp(folder):
    return {file.name: file.stat().st_ino for file in (folder / "cache").iterdir()}


def test_equal_inputs_are_used_again_and_others_are_tokenised_anew(tmp_path):
    written(tmp_path, a_txt="one", b_txt="two")
    first = opened(tmp_path)
    before, digest = stamp(tmp_path), first.digest
    assert opened(tmp_path).digest == digest
    assert stamp(tmp_path) == before
    # Another time and the same contents: compared, and used; the new time is written down.
    os.utime(tmp_path / "in" / "a.txt", ns=(1, 1))
    assert opened(tmp_path).manifest.inputs[0].mtime_ns == 1
    assert stamp(tmp_path)[shard_name(0)] == before[shard_name(0)]
    # The same length and other contents.
    (tmp_path / "in" / "a.txt").write_text("eno")
    again = opened(tmp_path)
    assert ids_of(again) == ended("eno") + ended("two")
    assert again.digest != digest
    (tmp_path / "in" / "b.txt").rename(tmp_path / "in" / "0.txt")
    assert ids_of(opened(tmp_path)) == ended("two") + ended("eno")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cache", "in"]


def test_another_tokenizer_makes_the_data_anew(tmp_path):
    written(tmp_path, a_txt="one")
    opened(tmp_path)
    assert ids_of(opened(tmp_path, PLAIN)) == list(b"one")


@pytest.mark.parametrize("harm", ["missing", "short", "manifest"])
def test_a_damaged_cache_is_made_again(tmp_path, harm):
    written(tmp_path, a_txt="one")
    opened(tmp_path)
    if harm == "missing":
        (tmp_path / "cache" / DOCUMENTS).unlink()
    elif harm == "short":
        os.truncate(tmp_path / "cache" / DOCUMENTS, 100)
    else:
        (tmp_path / "cache" / MANIFEST).write_text("{")
    assert ids_of(opened(tmp_path)) == ended("one")


def test_a_folder_of_shards_is_taken_as_it_is_without_a_tokenizer(tmp_path):
    made = data(tmp_path, CAUSAL, ["one", "two"])
    found = open_data(made.folder, vocabularies=vocabularies_of(CAUSAL, None), cache=tmp_path / "other")
    assert ids_of(found) == ids_of(made)
    assert not (tmp_path / "other").exists()
    assert ids_of(read_data(made.folder, vocabularies=vocabularies(CAUSAL))) == ids_of(made)


def test_shards_by_hand_need_no_digests(tmp_path):
    ids = np.arange(20, dtype=np.uint16)
    np.save(tmp_path / shard_name(0), ids)
    np.save(tmp_path / DOCUMENTS, np.array([0, 5, 20]))
    manifest = {"form": "documents", "dtype": "uint16", "tokens": 20, "shard_tokens": 32, "documents": 2}
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "largest_id": [19], "vocabularies": [{"eos_id": EOS}]}))
    tokens = open_data(tmp_path, vocabularies=vocabularies(CAUSAL), cache=tmp_path / "unused")
    assert ids_of(tokens) == ids.tolist()


def test_arrays_that_hold_objects_are_not_read(tmp_path):
    made = data(tmp_path, CAUSAL, ["one"])
    np.save(made.folder / shard_name(0), np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ArchcError, match=r"tokens-00000\.npy can't be read as an array"):
        read_data(made.folder, vocabularies=vocabularies(CAUSAL)).read(0, 1)


def test_progress_counts_bytes_up_to_all_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 5000)
    monkeypatch.setattr(tokenising, "_BATCH_CHARACTERS", 10_000)
    seen = []
    data(tmp_path, CAUSAL, ["é" * 50_000, "b" * 60_000], progress=lambda *found: seen.append(found))
    done = [bytes_done for _, bytes_done, _ in seen]
    assert done == sorted(done)
    assert len(done) >= 2
    assert seen[-1] == ("tokenising", 160_000, 160_000)


MAKER = """
import sys
from pathlib import Path
from archc.training.data.opening import open_data
from tests.training.texts import CAUSAL, vocabularies
folder = Path(sys.argv[1])
def told(name, done, total):
    print(done, flush=True)
    if sys.argv[2] == "wait" and done > 1_000_000:
        sys.stdin.read()
open_data(folder / "in", vocabularies=vocabularies(CAUSAL), cache=folder / "cache", progress=told)
"""


def maker(folder, how):
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(folder), how],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_a_kill_leaves_what_was_there_and_the_next_run_clears_up(tmp_path):
    written(tmp_path, a_txt="old")
    (tmp_path / "bad.txt").write_bytes(b"\0")
    opened(tmp_path)
    text = "line\n" * 300_000
    (tmp_path / "in" / "a.txt").write_text(text)
    with maker(tmp_path, "wait") as run:
        while int(run.stdout.readline()) <= 1_000_000:
            pass
        (half,) = tmp_path.glob(".cache.*")
        # Another process that begins, and fails, leaves what the living one has made so far.
        with pytest.raises(ArchcError, match="is no text"):
            open_data(tmp_path / "bad.txt", vocabularies=vocabularies(CAUSAL), cache=tmp_path / "cache")
        assert (half / shard_name(0)).is_file()
        run.kill()
    assert half.is_dir()
    assert ids_of(read_data(tmp_path / "cache", vocabularies=vocabularies(CAUSAL))) == ended("old")
    assert ids_of(opened(tmp_path)) == ended(text)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.txt", "cache", "in"]


MEASURED = """
import resource, sys
from pathlib import Path
from archc.training.data.opening import open_data
from tests.training.texts import CAUSAL, vocabularies
folder = Path(sys.argv[1])
vocabulary = vocabularies(CAUSAL)
for name in ("small", "large"):
    open_data(folder / f"{name}.txt", vocabularies=vocabulary, cache=folder / name)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def test_memory_does_not_grow_with_the_text(tmp_path):
    line = "a line of text, as long as lines are, 中文\n"
    for name, size_bytes in (("small", 4 << 20), ("large", 12 << 20)):
        (tmp_path / f"{name}.txt").write_text(line * (size_bytes // len(line.encode())))
    found = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        # What an allocator keeps for each of many threads is not what the data takes.
        env={**os.environ, "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    small_mib, large_mib = map(int, found.stdout.split())
    # Eight bytes a token of the second text would be 96 MiB.
    assert large_mib - small_mib <= 24


def test_one_process_makes_and_the_others_read(tmp_path):
    written(tmp_path, a_txt="one")
    with pytest.raises(ArchcError, match="can't be read"):
        read_data(tmp_path / "cache", vocabularies=vocabularies(CAUSAL))
    folder = prepare_data(tmp_path / "in", vocabularies=vocabularies(CAUSAL), cache=tmp_path / "cache")
    assert ids_of(read_data(folder, vocabularies=vocabularies(CAUSAL))) == ended("one")
