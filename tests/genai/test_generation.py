"""onnxruntime-genai generates what archc's own file does, for every architecture that its runtime can hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archc import load
from archc.expansion import expand
from archc.spec.resolved import resolved
from archc_exporters.onnx.export import export
from tests.genai.conftest import PROMPT, RAGGED, STEPS, Pair, Runner
from tests.genai.specs import SPECS

pytestmark = [pytest.mark.genai, pytest.mark.onnx, pytest.mark.torch]

Pairs = Callable[..., Pair]
LENGTH = max(map(len, RAGGED))


def padded(end: int) -> list[list[int]]:
    return [[*row, *[end] * (LENGTH - len(row))] for row in RAGGED]


def assert_same(run: Any, pair: Pair, rows: int, *, tolerance: float = 2e-5) -> None:
    """Equal tokens, and before each of them logits that are as close as two orders of summation make them."""
    assert run.logits.shape == (STEPS, rows, pair.logits.shape[-1])
    scale = np.abs(pair.logits).max()
    assert np.abs(run.logits - pair.logits[:, :rows]).max() <= tolerance * scale
    np.testing.assert_array_equal(run.tokens[:, -STEPS:], pair.tokens[:rows])


@pytest.mark.parametrize("name", SPECS)
def test_greedy_tokens_are_those_of_archcs_own_file(name: str, pair: Pairs, genai: Runner):
    made = pair(name)
    assert len(np.unique(made.tokens)) > 2, "a run that repeats one token shows little"
    assert_same(genai(made.genai, PROMPT, max_length=LENGTH + STEPS), made, 1)


@pytest.mark.parametrize("name", SPECS)
def test_a_ragged_batch_is_padded_on_the_right(name: str, pair: Pairs, genai: Runner):
    made = pair(name)
    assert_same(genai(made.genai, padded(made.end), max_length=LENGTH + STEPS), made, 2)


@pytest.mark.parametrize("name", ["llama", "windows and sinks", "kda hybrid"])
def test_archc_run_gives_the_same_tokens(name: str, pair: Pairs, genai: Runner):
    made = pair(name)
    run = genai(made.genai, padded(made.end), max_length=LENGTH + STEPS)
    rows = load(made.archc, threads=1).generate(RAGGED, max_new_tokens=STEPS).ids
    np.testing.assert_array_equal(run.tokens[:, -STEPS:], rows)


@pytest.mark.parametrize("name", ["windows and sinks", "odd heads", "gated deltanet hybrid"])
def test_a_prompt_in_chunks_and_one_in_two_turns_give_the_same(name: str, pair: Pairs, genai: Runner):
    made = pair(name)
    assert_same(genai(made.genai, PROMPT, max_length=LENGTH + STEPS, chunk_size=3), made, 1)
    first, second = [PROMPT[0][:4]], [PROMPT[0][4:]]
    assert_same(genai(made.genai, second, before=[first], max_length=LENGTH + STEPS), made, 1)


@pytest.mark.parametrize("name", ["llama", "windows and sinks", "gated deltanet hybrid"])
def test_buffers_that_grow_give_the_same_where_attention_is_group_query(name: str, pair: Pairs, genai: Runner):
    made = pair(name)
    run = genai(made.genai, padded(made.end), max_length=LENGTH + STEPS, past_present_share_buffer=False)
    assert_same(run, made, 2)


@pytest.mark.parametrize("name", ["llama", "kda hybrid"])
def test_logits_of_the_last_token_alone_are_enough(name: str, pair: Pairs, genai: Runner):
    made = pair(name, prune_head=True)
    assert_same(genai(made.genai, padded(made.end), max_length=LENGTH + STEPS), made, 2)


def test_a_file_in_float16_runs(pair: Pairs, genai: Runner):
    made = pair("windows and sinks", dtype="float16")
    run = genai(made.genai, PROMPT, max_length=LENGTH + STEPS)
    assert np.abs(run.logits[0] - made.logits[0, :1]).max() <= 5e-3 * np.abs(made.logits).max()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("share", [True, False])
def test_its_runtime_holds_rounded_caches(dtype: str, share: bool, pair: Pairs, genai: Runner):
    made = pair("normed queries", cache=dtype)
    run = genai(made.genai, padded(made.end), max_length=LENGTH + STEPS, past_present_share_buffer=share)
    assert_same(run, made, 2)


def test_rolling_windows_give_the_same_and_refuse_ragged_prompts(pair: Pairs, genai: Runner):
    made = pair("windows and sinks", sliding_window_cache=True)
    assert_same(genai(made.genai, PROMPT, max_length=LENGTH + STEPS), made, 1)
    with pytest.raises(RuntimeError, match="seqlens_k"):
        genai(made.genai, padded(made.end), max_length=LENGTH + STEPS)


def test_its_tokenizer_reads_the_one_that_is_written(tmp_path: Path, genai: Runner):
    spec = tmp_path / "spec.yaml"
    kind = "{kind: bpe, vocab_size: 300, file: tokenizer.json, eos_token_id: 1, pad_token_id: 0}"
    spec.write_text(SPECS["llama"].format(tokenizer=kind), "utf-8")
    described = resolved(str(spec), ())
    trained = described.spec.tokenizer.train(["ragged rows are padded on the right, and read from their end"] * 20)
    trained.save(str(tmp_path / "tokenizer.json"))
    export(expand(described.spec), tmp_path / "out", io="genai", provider="cpu", dtype="float32", spec=described)
    text = "rows of größe 5 are read\n"
    run = genai(tmp_path / "out", PROMPT, text=text, max_length=LENGTH + 1)
    assert run.encoded is not None
    assert list(run.encoded) == trained.encode(text).ids
    assert run.decoded == text
