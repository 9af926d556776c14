"""The data of a run and its folder: what a refused or killed run leaves, and what a resumed one takes."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

import archc  # noqa: E402
from archc.cli.main import archc as command  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from archc.training.sample_text import sample_text  # noqa: E402

pytestmark = pytest.mark.torch

STATED = {"seq_len": 16, "batch_size": 2, "schedule": "constant", "lr": 1e-3}
SMALL = ("tokenizer=bytes", "stack.num_layers=1", "max_position_embeddings=64")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    text = sample_text(characters=12_000)
    for name, part in (("one", text[:6000]), ("two", text[6000:])):
        (folder / f"{name}.txt").write_text(part, "utf-8")
    return folder


def train(data, run=None, steps=2, **more):
    return archc.train("tiny-llama", data=data, output=run, steps=steps, overrides=SMALL, **STATED, **more)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def losses(found):
    return [record.loss for record in found.records]


def test_a_resumed_run_refuses_other_data_and_keeps_its_own(texts, tmp_path):
    run = tmp_path / "run"
    train(texts / "one.txt", run)
    before = contents(run)
    with pytest.raises(ArchcError, match="data: train"):
        train(texts / "two.txt", run, steps=4, resume=True)
    assert contents(run) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    rest = train(texts / "one.txt", run, steps=4, resume=True)
    assert losses(rest) == losses(train(texts / "one.txt", steps=4))[2:]


def test_a_run_that_has_moved_and_whose_data_has_another_name_goes_on(texts, tmp_path):
    whole = losses(train(texts / "one.txt", steps=4))
    train(texts / "one.txt", tmp_path / "first", steps=1)
    shards = shutil.copytree(tmp_path / "first/data/train", tmp_path / "shards")
    train(shards, tmp_path / "run")
    run = (tmp_path / "run").rename(tmp_path / "moved")
    shutil.rmtree(shards)
    renamed = shutil.copy(texts / "one.txt", tmp_path / "renamed.txt")
    assert losses(train(renamed, run, steps=3, resume=True)) == whole[2:3]
    moved = run.rename(tmp_path / "again")
    assert losses(train(moved / "data/train", moved, steps=4, resume=True)) == whole[3:]
    assert [file.name for file in (moved / "data").iterdir()] == ["train"]


def test_what_a_run_left_that_was_killed_while_it_read_texts_is_removed_by_the_next(texts, tmp_path):
    run = tmp_path / "run"
    code = (
        "import archc, os, signal, sys\n"
        "def progress(*args): os.kill(os.getpid(), signal.SIGKILL)\n"
        "archc.train('tiny-llama', data=sys.argv[1], output=sys.argv[2], steps=1, overrides=['tokenizer=bytes'],"
        " progress=progress)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(texts), str(run)], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    train(texts, run)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_a_run_that_is_refused_after_its_folder_was_made_is_not_there(texts, tmp_path):
    other = archc.train("tiny-llama", data=texts, output=tmp_path / "other", steps=1, overrides=SMALL[:2], **STATED)
    wider = ("tokenizer=bytes", "embedding.hidden_size=64", *SMALL[1:])
    with pytest.raises(ArchcError):
        archc.train(
            "tiny-llama", data=texts, output=tmp_path / "run", steps=1, overrides=wider, weights=other.folder, **STATED
        )
    assert [entry.name for entry in tmp_path.iterdir()] == ["other"]


def test_a_run_that_ended_before_its_first_checkpoint_begins_again_from_its_weights(texts, tmp_path):
    class Breaking:
        def __getattr__(self, name):
            return lambda *args: None

        def on_step(self, record):
            raise RuntimeError("the power is gone")

    first = train(texts, tmp_path / "first", steps=4)
    stated = {"weights": first.folder, "seed": 3}
    whole = train(texts, steps=2, **stated)
    with pytest.raises(RuntimeError, match="the power is gone"):
        train(texts, tmp_path / "run", watchers=[Breaking()], **stated)
    again = train(texts, tmp_path / "run", seed=3, resume=True)
    assert losses(again) == losses(whole)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"eval_every": 1}, "eval_every: there is nothing to look at"),
        ({"held_out": 0.5, "eval_data": "one.txt"}, "state one"),
        ({"sample_every": 1, "sample_prompts": ["a" * 64]}, "64 tokens"),
        ({"sample_every": 1, "sample_prompts": ["a\ud800"]}, "can't read"),
        ({"sample_every": 1, "sample_prompts": [""]}, "no tokens"),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_is_made(stated, said, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(texts)
    with pytest.raises(ArchcError, match=said):
        train(texts, tmp_path / "run", **stated)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write into")
def test_a_place_that_can_not_be_written_is_an_error_that_names_it(texts):
    with pytest.raises(ArchcError, match="/proc/self can't be written"):
        train(texts, "/proc/self/run")


def test_samples_of_a_model_with_hardly_any_room_begin_with_less(texts, tmp_path):
    more = ("tokenizer=bytes", "stack.num_layers=1", "max_position_embeddings=8")
    run = tmp_path / "run"
    archc.train("tiny-llama", data=texts, output=run, steps=1, overrides=more, batch_size=2, sample_every=1)
    assert len((run / "samples.jsonl").read_text("utf-8").splitlines()) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_without_a_folder_gives_its_model_whatever_it_computed_in(dtype, texts, tmp_path):
    found = train(texts, dtype=dtype)
    kept = train(texts, tmp_path / "run", dtype=dtype)
    stored = archc.load_weights(archc.build(kept.folder / "spec.yaml", device="cpu"), kept.folder)
    for name, weight in stored.named_parameters():
        assert torch.equal(weight, found.model.get_parameter(name)), name
    assert len(archc.generate(found.model, [1, 2], max_new_tokens=2).ids[0]) == 2


class Interrupting:
    """Sends Ctrl-C after steps."""

    def __init__(self, *steps):
        self.steps = steps

    def __getattr__(self, name):
        return lambda *args: None

    def on_step(self, record):
        for _ in range(self.steps.count(record["step"])):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_that_was_asked_to_stop_in_its_last_step_is_finished(texts):
    found = train(texts, watchers=[Interrupting(1)])
    assert (found.ending, found.step) == ("finished", 2)


def test_a_signal_that_comes_twice_as_torchrun_sends_it_on_is_one_request_and_a_later_one_breaks_the_step(
    texts, tmp_path, monkeypatch
):
    found = train(texts, tmp_path / "run", steps=4, watchers=[Interrupting(1, 1)])
    assert (found.ending, found.step) == ("interrupted", 2)
    assert found.checkpoint is not None
    monkeypatch.setattr("archc.training.requests.TOGETHER_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(texts, tmp_path / "other", steps=4, watchers=[Interrupting(1, 1)])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_data_that_is_too_short_is_named_as_it_was_given(tmp_path):
    (tmp_path / "short.txt").write_text("abc", "utf-8")
    with pytest.raises(ArchcError, match=r"^short\.txt: the data has 3 tokens, fewer than the 17"):
        train(tmp_path / "short.txt", tmp_path / "run")


TWO = """
spec_version: 1
name: two
tokenizer: {kind: external, vocab_size: 259, file: own/reads.json}
embedding: {hidden_size: 16, tie_word_embeddings: false}
position: none
norm: none
mixers:
  reader: {kind: gru, hidden_size: 16, bidirectional: true}
  writer: {kind: attention_gru, hidden_size: 16, score: {kind: additive, hidden_size: 16}}
encoder: {num_layers: 1, block: plain, mixer: reader, ffn: none}
decoder:
  num_layers: 1
  block: plain
  mixer: writer
  ffn: none
  tokenizer: {kind: external, vocab_size: 260, file: own/writes.json, bos_token_id: 257, eos_token_id: 256}
  embedding: {hidden_size: 16, tie_word_embeddings: false}
head: {kind: maxout_lm, hidden_size: 8}
"""


def test_the_model_of_a_run_has_the_tokenizers_of_its_spec_wherever_it_goes(texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own"
    own.mkdir()
    loaded = archc.load_spec("tiny-llama", SMALL).tokenizer.load(".")
    loaded.save(str(own / "reads.json"))
    loaded.add_special_tokens(["<end>", "<start>"])
    loaded.save(str(own / "writes.json"))
    (tmp_path / "two.yaml").write_text(TWO, "utf-8")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"source": "a b", "target": "b a"}\n' * 4, "utf-8")
    archc.train(tmp_path / "two.yaml", data=pairs, output=tmp_path / "pairs", steps=1, seq_len=8, batch_size=2)
    one = ("tokenizer.kind=external", "tokenizer.vocab_size=1024", "tokenizer.file=own/reads.json")
    archc.train("tiny-llama", data=texts, output=tmp_path / "one", steps=1, overrides=(*SMALL[1:], *one), **STATED)
    shutil.rmtree(own)
    for name in ("pairs", "one"):
        moved = (tmp_path / name / "model").rename(tmp_path / f"{name}-model")
        written = CliRunner().invoke(command, ["generate", str(moved), "--prompt", "a", "--max-new-tokens", "2"])
        assert (written.exit_code, "can't be had" in written.stderr) == (0, False), written.stderr
        spec = archc.load_spec(moved / "spec.yaml")
        for stack in spec.stacks().values():
            assert (stack.tokenizer or spec.tokenizer).load(moved).get_vocab_size() > 255
