"""Data that can't be used: an error that names the file and what to do, and nothing half written."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archc.errors import ArchcError
from archc.expansion import expand
from archc.spec.load import load_spec
from archc.training.data import documents, tokenising
from archc.training.data.manifest import DOCUMENTS, MANIFEST
from archc.training.data.opening import open_data, read_data
from archc.training.data.order import split
from archc.training.data.vocabulary import vocabularies_of
from archc.training.objectives.choosing import data_form, objective_for
from tests.training.texts import CAUSAL, MASKED, PAIRED, PLAIN, data, masking_tokenizer, options, vocabularies

pytestmark = pytest.mark.torch


def fails(folder, message, *, spec=CAUSAL, paths=None, **more):
    with pytest.raises(ArchcError, match=message) as found:
        open_data(
            folder / "in" if paths is None else paths,
            vocabularies=vocabularies(spec),
            cache=folder / "out" / "cache",
            **more,
        )
    assert not (folder / "out").exists() or not any((folder / "out").iterdir())
    return str(found.value)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.txt", b"text\0text", r"a\.txt is no text: byte 4 is NUL"),
        ("a.txt", b"x" * (3 << 20) + b"\0", r"a\.txt is no text: byte 3,145,728 is NUL"),
        ("a.txt", b"caf\xe9 au lait", r"a\.txt is no UTF-8: invalid continuation byte at byte 3"),
        ("a.txt", b"x" * ((1 << 20) - 1) + b"\xc3\x28", r"invalid continuation byte at byte 1,048,575"),
        ("a.txt", b"\xef\xbb\xbfab\xff", r"invalid start byte at byte 5"),
        ("a.txt", b"cut off \xe4\xb8", r"unexpected end of data at byte 8"),
        ("a.txt", "text".encode("utf-16"), r"a\.txt is UTF-16; data is UTF-8"),
        ("a.jsonl", b'{"text": "one"}\nno\n', r"a\.jsonl:2: is no JSON"),
        ("a.jsonl", b'{"text": "one"}\n["two"]\n', r"a\.jsonl:2: is no object; a line is \{\"text\""),
        ("a.jsonl", b'\n\n{"txet": "one", "id": 1}\n', r"a\.jsonl:3: has no text \(found txet, id\)"),
        ("a.jsonl", b'{"text": 3}', r"a\.jsonl:1: text should be a text \(found int\)"),
        ("a.jsonl", b'{"text": "\xff"}', r"a\.jsonl:1: is no UTF-8: invalid start byte at byte 10 of the line"),
        ("a.jsonl", b'{"text": "\0"}', r"a\.jsonl:1: is no text: byte 10 of the line is NUL"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"a\.jsonl:1: text has half a surrogate pair at character 0"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: is no JSON"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"source": "b", "target": "c"}',
            r"a\.jsonl:2: documents and pairs stand in one set",
        ),
        ("a.txt.gz", b"no gzip at all", r"a\.txt\.gz can't be unpacked: Not a gzipped file"),
        ("a.txt.gz", gzip.compress(b"text" * 99, mtime=0)[:-9], r"a\.txt\.gz can't be unpacked: "),
        ("a.jsonl.gz", gzip.compress(b"text" * 99, mtime=0)[:-9], r"a\.jsonl\.gz can't be unpacked: "),
    ],
)
def test_a_file_that_is_no_text_is_named_with_the_place(tmp_path, name, contents, message):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(contents)
    fails(tmp_path, message)


def test_a_line_that_is_longer_than_memory_should_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(documents, "MAX_SOURCE_CHARACTERS", 20)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps({"text": "x" * 100}))
    fails(tmp_path, r"a\.jsonl:1: a line has more than 100 bytes; give such a document as a \.txt file")
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps({"source": "x" * 21, "target": "y"}))
    fails(tmp_path, r"a\.jsonl:1: a source has more than 20 characters", spec=PAIRED)


def test_everything_that_is_wrong_with_files_is_said_at_once(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "empty.txt").touch()
    os.mkfifo(tmp_path / "pipe")
    paths = [tmp_path / name for name in ("empty.txt", "folder", "missing.txt", "pipe")]
    said = fails(tmp_path, "is empty", paths=paths).splitlines()
    assert len(said) == 4
    for line, wanted in zip(
        said, ("is empty", "is empty: a folder of", "can't be read: No such file", "is no file that can"), strict=True
    ):
        assert wanted in line
    fails(tmp_path, "there is no data; give a file or a folder", paths=[])


def test_a_file_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("text")
    (tmp_path / "in" / "b.txt").symlink_to(tmp_path / "nowhere")
    fails(tmp_path, r"b\.txt can't be read: No such file")


def test_data_of_no_token_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": ""}\n\n')
    fails(tmp_path, r"a\.jsonl: no token comes of this data")


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 1000)
    monkeypatch.setattr(tokenising, "_BATCH_CHARACTERS", 1000)
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.txt"
    file.write_text("x" * 5000)

    def grow(*_):
        with file.open("a") as more:
            more.write("y")

    fails(tmp_path, r"a\.txt was changed while it was read", progress=grow)


def test_a_cache_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for place in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt"):
        with pytest.raises(ArchcError, match="is there and holds no shards; choose another place"):
            open_data(tmp_path / "a.txt", vocabularies=vocabularies(CAUSAL), cache=place)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


FILLED = """
import resource, sys
from pathlib import Path
from archc.errors import ArchcError
from archc.training.data.opening import open_data
from tests.training.texts import CAUSAL, vocabularies
source, cache, limit_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
try:
    open_data(source, vocabularies=vocabularies(CAUSAL), cache=cache)
except ArchcError as error:
    print(error)
print(sorted(file.name for file in cache.parent.iterdir()))
"""


@pytest.mark.parametrize("kind", ["disk", "limit"])
def test_a_full_disk_is_said_and_nothing_stays_of_what_was_made(tmp_path, kind):
    (tmp_path / "a.txt").write_text("text\n" * 150_000)
    (tmp_path / "out").mkdir()
    python = [sys.executable, "-c", FILLED, str(tmp_path / "a.txt"), str(tmp_path / "out" / "cache")]
    command = [*python, "1000000"]
    if kind == "disk":
        if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
            pytest.skip("a small disk can't be had here")
        mount = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
        command = ["unshare", "-rm", "sh", "-c", mount, str(tmp_path / "out"), *python, "0"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    said, left = found.stdout.splitlines()
    reason = {"disk": "No space left on device", "limit": "File too large"}[kind]
    assert re.search(rf"cache: the data can't be written there: {reason}; nothing was kept\. Free some space", said)
    assert left == "[]"


def changed(folder, **facts):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **facts}))


def test_a_tokenizer_with_more_ids_than_the_spec_does_not_match():
    wide = load_spec("tiny-llama", ["tokenizer={kind: bytes, eos_token_id: 256}"]).tokenizer.load(".")
    with pytest.raises(ArchcError, match="a vocabulary that does not match: the tokenizer has the id 256"):
        vocabularies(PLAIN, wide)


def test_a_text_that_the_tokenizer_can_not_say_names_the_file(tmp_path):
    spec = load_spec("tiny-llama", ["tokenizer={kind: char, vocab_size: 10}"])
    with pytest.raises(ArchcError, match=r"00001\.txt: the tokenizer has no ids for all of a text: .*unk_token_id"):
        data(tmp_path, spec, ["abc", "abd"], tokenizer=spec.tokenizer.train(["abc"]))


def test_shards_of_another_vocabulary_are_refused(tmp_path):
    tokens = data(tmp_path, CAUSAL, ["text"])
    for spec, message in (
        (PLAIN, "was made with another tokenizer; make it again from the texts"),
        (
            load_spec("tiny-llama", ["tokenizer={kind: external, vocab_size: 300}"]),
            "the eos_token_id 256, and the spec's is None",
        ),
        (
            load_spec("tiny-llama", ["tokenizer={kind: external, vocab_size: 257, eos_token_id: 5}"]),
            "the eos_token_id 256, and the spec's is 5",
        ),
    ):
        given = vocabularies(spec) if spec is PLAIN else vocabularies_of(spec, None)
        with pytest.raises(ArchcError, match=message):
            read_data(tokens.folder, vocabularies=given)
    changed(tokens.folder, largest_id=[300])
    with pytest.raises(
        ArchcError, match="a vocabulary that does not match: it holds the id 300, and the spec has 257 ids"
    ):
        read_data(tokens.folder, vocabularies=vocabularies(CAUSAL))


def test_shards_that_hold_more_than_they_say_are_told_before_the_model_is(tmp_path):
    small = load_spec("tiny-llama", ["tokenizer={kind: external, vocab_size: 100}"])
    tokens = data(tmp_path, CAUSAL, ["the text of a row"])
    objective = objective_for(expand(small), small, tokens, options())
    with pytest.raises(ArchcError, match=r"the shards hold the id 12\d, and the model has 100 ids"):
        objective.batch(1, range(4))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "tokens-00000.npy").unlink(), r"tokens-00000\.npy is missing"),
        (lambda folder: os.truncate(folder / DOCUMENTS, 20), r"documents\.npy can't be read as an array"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "is no manifest of shards: "),
        (lambda folder: changed(folder, largest_id=[1, 2]), "is no manifest of shards: .*differ in length"),
        (lambda folder: changed(folder, form="pairs"), "is no manifest of shards: .*an even number of documents"),
        (
            lambda folder: changed(folder, tokens=4, shard_tokens=4),
            r"documents\.npy is no list of where documents begin",
        ),
        (lambda folder: (folder / MANIFEST).write_text('{"version": 2}'), "is no manifest of shards: version: "),
        (
            lambda folder: shutil.copy(folder / "tokens-00000.npy", folder / DOCUMENTS),
            r"holds uint16\[5\] and not int64\[2\]",
        ),
    ],
)
def test_a_damaged_folder_of_shards_is_told(tmp_path, harm, message):
    tokens = data(tmp_path, CAUSAL, ["text"])
    harm(tokens.folder)
    with pytest.raises(ArchcError, match=message):
        open_data(tokens.folder, vocabularies=vocabularies(CAUSAL), cache=tmp_path / "unused")


def test_shards_are_taken_alone(tmp_path):
    tokens = data(tmp_path, CAUSAL, ["text"])
    fails(tmp_path, "holds shards, which are taken alone", paths=[tmp_path / "texts", tokens.folder])


def test_texts_without_a_tokenizer_say_how_to_get_one(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(
        ArchcError, match="texts need a tokenizer, and there is none: archc tokenizer train SPEC --data FILE"
    ):
        open_data(tmp_path / "a.txt", vocabularies=vocabularies_of(CAUSAL, None), cache=tmp_path / "cache")


def made(folder, spec, texts, *, tokenizer=None, **more):
    return objective_for(expand(spec), spec, data(folder, spec, texts, tokenizer=tokenizer), options(**more))


def test_a_text_shorter_than_one_sequence_says_what_would_do(tmp_path):
    message = r"the data has 5 tokens, fewer than the 9 of one sequence: a seq_len of 4 would do, or packing documents"
    with pytest.raises(ArchcError, match=message):
        made(tmp_path, CAUSAL, ["text"])
    tokens = read_data(tmp_path / "cache", vocabularies=vocabularies(CAUSAL))
    assert len(objective_for(expand(CAUSAL), CAUSAL, tokens, options(seq_len=4)).order) == 1
    assert len(objective_for(expand(CAUSAL), CAUSAL, tokens, options(packing="documents")).order) == 1


def test_documents_of_one_token_teach_nothing(tmp_path):
    with pytest.raises(ArchcError, match="the data has 2 tokens, and no document of two"):
        made(tmp_path, PLAIN, ["a", "b"], packing="documents")


def test_a_sequence_is_no_longer_than_the_model_takes(tmp_path):
    with pytest.raises(
        ArchcError, match="seq_len, 4,096, is more than the 2,048 of max_position_embeddings of tiny-llama"
    ):
        made(tmp_path, CAUSAL, ["text"], seq_len=4096)


def test_one_sequence_can_not_be_split():
    with pytest.raises(ArchcError, match="1 sequence can't be split"):
        split(1, 0.5)
    with pytest.raises(ArchcError, match=r"should lie between 0 and 1 \(found 1.0\)"):
        split(10, 1.0)


@pytest.mark.parametrize("early", [True, False])
def test_the_other_form_of_data_is_refused_with_the_one_that_is_wanted(tmp_path, early):
    for spec, texts, message in (
        (CAUSAL, [("a", "b")], "pair of source and target, and a model of one stack learns from documents"),
        (
            PAIRED,
            ["text"],
            r'plain document, and a model with an encoder and a decoder .* \{"source": "…", "target": "…"\}',
        ),
    ):
        folder = tmp_path / spec.name
        folder.mkdir()
        form = data_form(expand(spec)) if early else None
        with pytest.raises(ArchcError, match=message):
            objective_for(expand(spec), spec, data(folder, spec, texts, form=form), options())
        assert (folder / "cache").exists() is not early


def test_an_encoder_without_a_mask_token_says_so(tmp_path):
    with pytest.raises(ArchcError, match=r"its tokenizer has none that stands for one: add \[MASK\] or <mask>"):
        made(tmp_path, MASKED, ["some text"], tokenizer=CAUSAL.tokenizer.load("."))
    (tmp_path / "again").mkdir()
    assert made(tmp_path / "again", MASKED, ["some text"], tokenizer=masking_tokenizer()).targets(1)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (
            "{kind: bytes, eos_token_id: 1}",
            "does not say from which id its decoder starts; state bos_token_id, or pad_token_id",
        ),
        ("{kind: bytes, pad_token_id: 0}", "does not say which id ends a target; state eos_token_id"),
    ],
)
def test_a_decoder_needs_a_start_and_an_end(tmp_path, tokenizer, message):
    with pytest.raises(ArchcError, match=message):
        made(tmp_path, load_spec("tiny-t5", [f"tokenizer={tokenizer}"]), [("a", "b")])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            load_spec("bert-base-uncased"),
            "gives hidden_states, pooler_output and no logits of tokens, so there is nothing",
        ),
        (
            load_spec("bert-base-uncased", ["head={kind: classifier, num_labels: 3}"]),
            r"gives logits \(batch, 3\), which are no ids of 30522",
        ),
        (
            load_spec("bert-base-uncased", ["head={kind: classifier, num_labels: 3, pool: none}"]),
            r"gives logits \(batch, seq, 3\), which are no ids of 30522",
        ),
        (load_spec("vit-base-patch16-224"), "reads pixel_values; archc train teaches models of texts"),
    ],
)
def test_a_model_that_predicts_no_tokens_is_refused_with_the_reason(spec, message):
    with pytest.raises(ArchcError, match=message):
        data_form(expand(spec))


def test_an_empty_pair_is_left_out_and_counted(tmp_path):
    tokens = data(tmp_path, PAIRED, [("a", "b"), ("", "c"), ("d", " "), ("e", "f")])
    assert tokens.documents == 4
    assert tokens.manifest.left_out == 2
