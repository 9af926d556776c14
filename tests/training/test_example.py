"""The example keeps its promise at reduced size: it learns, exports, and onnxruntime writes what torch writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")

import archc
from archc.training.sample_text import NUMBERS, sample_text

pytestmark = [pytest.mark.torch, pytest.mark.onnx]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train.py"


def words_of(text):
    return re.findall(r"[A-Za-z]+", text)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the example prints at reduced size."""
    done = subprocess.run(
        [
            sys.executable,
            str(EXAMPLE),
            str(tmp_path_factory.mktemp("demo") / "out"),
            "--quick",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_the_loss_falls_below_its_bound_from_a_fixed_seed(said):
    losses = [float(found) for found in re.findall(r"step +\d+: loss ([\d.]+)", said)]
    assert losses[0] > 5
    assert losses == sorted(losses, reverse=True)
    final, bound = re.search(r"loss ([\d.]+) after .* should be below ([\d.]+)", said).groups()
    assert float(final) < float(bound) == 0.8


def test_what_it_writes_becomes_words_of_the_text(said):
    known = set(words_of(sample_text()))
    texts = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    # Four prompts at half time, at the end, and by onnxruntime.
    assert len(texts) == 12
    words = [word for text in texts[8:] for word in words_of(text)]
    assert len(words) > 20
    assert sum(word in known for word in words) / len(words) > 0.8
    assert all(re.search(r"[\u4e00-\u9fff]", text) for text in texts[8:])


def test_onnxruntime_writes_what_torch_writes(said):
    assert "torch writes the same 400 characters" in said


def test_the_text_is_the_same_for_a_seed_and_begins_alike_at_any_length():
    begin = time.process_time()
    text = sample_text()
    assert time.process_time() - begin < 1
    assert 400_000 <= len(text) < 400_300
    assert text.startswith(sample_text(characters=5_000))
    assert sample_text(1, 5_000) != sample_text(0, 5_000)


def test_every_document_is_an_english_line_and_a_chinese_one():
    documents = sample_text().removesuffix("\n\n").split("\n\n")
    assert len(documents) > 4_000
    for document in documents:
        english, chinese = document.split("\n")
        assert english.isascii()
        assert not re.search(r"[A-Za-z]", chinese)


def test_sums_in_the_text_come_out_in_both_languages():
    names = {english: number for number, (english, _) in enumerate(NUMBERS, 1)}
    figures = {chinese: number for number, (_, chinese) in enumerate(NUMBERS, 1)} | {"两": 2}
    found = re.findall(
        r"has (\w+) \w+\. \w+ gives (\w+) to \w+\. Now \w+ has (\w+) .*\n.*?有(.).*?给..(.).*?现在..有(.)",
        sample_text(),
    )
    assert len(found) > 400
    for *english, a, b, c in found:
        had, given, left = (names[word] for word in english)
        assert had - given == left
        assert (had, given, left) == (figures[a], figures[b], figures[c])


def test_the_example_s_spec_has_an_id_for_each_character_and_one_that_is_unknown():
    spec = archc.load_spec(EXAMPLE.with_name("char-hybrid.yaml"))
    assert spec.tokenizer.ids() == len(set(sample_text())) + 1


def test_the_module_prints_the_text():
    said = subprocess.run(
        [sys.executable, "-m", "archc.training.sample_text"], capture_output=True, check=True, cwd=ROOT
    ).stdout
    assert said.decode("utf-8") == sample_text()
