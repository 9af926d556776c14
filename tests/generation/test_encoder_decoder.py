"""Answers of a decoder to what its encoder read, and texts that go on behind a prefix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.cli.main import archc as program  # noqa: E402
from archc.errors import ArchcError  # noqa: E402

pytestmark = pytest.mark.torch

SPEC = """
spec_version: 1
name: reader
dtype: float32
tokenizer: {kind: external, vocab_size: 96, pad_token_id: 0, eos_token_id: 1}
embedding: {hidden_size: 32, tie_word_embeddings: false}
position: {kind: relative_bias, num_buckets: 8, max_distance: 16}
norm: {kind: rms_norm, eps: 1e-6}
mixers:
  self: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8}
  to_encoder: {extends: self, position: none}
ffns: {mlp: {kind: mlp, intermediate_size: 48, activation: relu}}
encoder: {num_layers: 2, block: pre_norm, mixer: self, ffn: mlp}
decoder: {num_layers: 2, block: pre_norm, mixer: self, cross: to_encoder, ffn: mlp}
"""
PREFIXED = """
spec_version: 1
name: prefixed
dtype: float32
tokenizer: {kind: external, vocab_size: 96}
embedding: {hidden_size: 32, tie_word_embeddings: false}
position: {kind: rope, theta: 100.0}
norm: {kind: rms_norm, eps: 1e-6}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}
ffns: {mlp: {kind: mlp, intermediate_size: 48, activation: relu}}
stack: {num_layers: 2, block: pre_norm, mixer: attn, ffn: mlp, mask: prefix}
"""
PROMPTS = [[5, 6, 7, 8, 9, 40, 1], [11, 12, 1], [70, 3, 9, 9, 1]]
NEW = 10


def lively(text: str) -> Any:
    """A model whose words differ from one to the next."""
    model = archc.build(archc.loads_spec(text), device="cpu", seed=4).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model


@pytest.fixture(scope="module")
def reader() -> Any:
    return lively(SPEC)


@torch.no_grad()
def by_whole_calls(model: Any, prompt: list[int], first: list[int]) -> list[int]:
    """Each id from a call without a cache over all before it."""
    ids = list(first)
    for _ in range(NEW):
        logits = model(torch.tensor([ids]), encoder_input_ids=torch.tensor([prompt]))
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(first) :]


def test_an_answer_is_that_of_calls_over_everything_whatever_stands_beside_it(reader: Any) -> None:
    expected = [by_whole_calls(reader, prompt, [0]) for prompt in PROMPTS]
    assert len({word for row in expected for word in row}) > 3
    made = archc.generate(reader, PROMPTS, max_new_tokens=NEW)
    assert made.ids == expected
    assert made.prompts == PROMPTS
    assert made.timings.prompt_tokens == 15
    assert archc.generate(reader, PROMPTS[1], max_new_tokens=NEW).ids == expected[1:2]


def test_a_decoder_starts_from_what_the_spec_says_or_its_caller(reader: Any) -> None:
    begun = lively(SPEC.replace("pad_token_id: 0", "bos_token_id: 33"))
    assert archc.generate(begun, PROMPTS[0], max_new_tokens=NEW).ids == [by_whole_calls(begun, PROMPTS[0], [33])]
    several = archc.generate(reader, PROMPTS, max_new_tokens=NEW, decoder_ids=[33, 7])
    assert several.ids == [by_whole_calls(reader, prompt, [33, 7]) for prompt in PROMPTS]
    assert several.ids != archc.generate(reader, PROMPTS, max_new_tokens=NEW).ids
    nothing = archc.build(archc.loads_spec(SPEC.replace("pad_token_id: 0, ", "")), device="cpu", seed=0)
    with pytest.raises(ArchcError, match="does not say from which id its decoder starts; state bos_token_id"):
        archc.generate(nothing, PROMPTS)
    with pytest.raises(ArchcError, match=r"decoder_ids should be one id or more from 0 to 95 \(found \[96\]\)"):
        archc.generate(reader, PROMPTS, decoder_ids=[96])


def test_an_answer_ends_at_a_stop_id_and_its_neighbours_go_on(reader: Any) -> None:
    whole = archc.generate(reader, PROMPTS, max_new_tokens=NEW).ids
    stop = whole[1][4]
    made = archc.generate(reader, PROMPTS, max_new_tokens=NEW, stop_ids=[stop])
    assert made.ids == [row[: row.index(stop) + 1] if stop in row else row for row in whole]
    assert made.finished[1] == "stop"


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.7}], ids=str)
def test_words_are_those_of_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.24")
    from archc.checkpoint.opening import import_folder
    from tests.parity.oracle import _randomise

    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    _randomise(model, 2)
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(torch.randn(96, 32, generator=torch.Generator().manual_seed(5)))
    model.save_pretrained(tmp_path)
    ours = archc.load_weights(archc.build(import_folder(tmp_path).spec, device="cpu"), tmp_path).eval()
    expected = [
        model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=None, **options)
        for prompt in PROMPTS
    ]
    words = [row[0, 1:].tolist() for row in expected]
    assert len({word for row in words for word in row}) > 5
    assert archc.generate(ours, PROMPTS, max_new_tokens=NEW, **options).ids == words


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_that_is_padded_is_that_of_its_rows(reader: Any, side: str) -> None:
    longest = max(map(len, PROMPTS))
    gaps = [[0] * (longest - len(prompt)) for prompt in PROMPTS]
    pairs = list(zip(PROMPTS, gaps, strict=True))
    ids = torch.tensor([gap + prompt if side == "left" else prompt + gap for prompt, gap in pairs])
    ones = [[1] * len(prompt) for prompt in PROMPTS]
    mask = torch.tensor([g + o if side == "left" else o + g for g, o in zip(gaps, ones, strict=True)])
    expected = archc.generate(reader, PROMPTS, max_new_tokens=NEW)
    made = archc.generate(reader, ids, attention_mask=mask, max_new_tokens=NEW)
    assert (made.ids, made.prompts) == (expected.ids, PROMPTS)
    with pytest.raises(ArchcError, match="attention_mask should have a number for each id"):
        archc.generate(reader, ids, attention_mask=mask[:, 1:])


def test_a_prompt_of_a_prefix_stack_is_its_prefix() -> None:
    model = lively(PREFIXED)
    expected: list[list[int]] = []
    with torch.no_grad():
        for prompt in PROMPTS:
            ids = list(prompt)
            for _ in range(NEW):
                logits = model(torch.tensor([ids]), prefix_length=torch.tensor([len(prompt)]))
                ids.append(int(logits[0, -1].argmax()))
            expected.append(ids[len(prompt) :])
    for chunk_size in (512, 2):
        assert archc.generate(model, PROMPTS, max_new_tokens=NEW, chunk_size=chunk_size).ids == expected
    causal = lively(PREFIXED.replace(", mask: prefix", ""))
    assert archc.generate(causal, PROMPTS, max_new_tokens=NEW).ids != expected


def test_an_encoder_continues_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    text = SPEC.split("decoder:")[0].replace(", tie_word_embeddings: false", "")
    alone = archc.build(archc.loads_spec(text), device="cpu", seed=0)
    with pytest.raises(ArchcError, match=r"is an encoder: .* model\(ids, attention_mask\) gives its hidden_states"):
        archc.generate(alone, PROMPTS)
    (tmp_path / "alone.yaml").write_text(text, "utf-8")
    done = CliRunner().invoke(program, ["generate", str(tmp_path / "alone.yaml"), "--prompt-ids", "5,6"])
    assert done.exit_code != 0
    assert "archc export writes it, and archc run gives its hidden_states" in done.output


def test_a_prompt_longer_than_the_encoder_takes_is_refused() -> None:
    short = archc.build(archc.loads_spec(f"{SPEC}max_position_embeddings: 6\n"), device="cpu", seed=0)
    assert archc.generate(short, PROMPTS[1]).finished == ["length"]
    with pytest.raises(ArchcError, match="a prompt of 7 tokens is more than the 6 of max_position_embeddings"):
        archc.generate(short, PROMPTS)


def test_the_command_answers_with_ids_and_takes_a_start(reader: Any, tmp_path: Path) -> None:
    (tmp_path / "reader.yaml").write_text(SPEC, "utf-8")
    archc.save_weights(reader, tmp_path / "model.safetensors")
    words = [
        "generate",
        str(tmp_path / "reader.yaml"),
        "--weights",
        str(tmp_path / "model.safetensors"),
        "--device",
        "cpu",
    ]
    words += [word for prompt in PROMPTS for word in ("--prompt-ids", ",".join(map(str, prompt)))]
    words += ["--max-new-tokens", str(NEW), "--stop-ids", "95", "--json"]
    for start, more in ([0], []), ([33, 7], ["--decoder-ids", "33,7"]):
        done = CliRunner().invoke(program, [*words, *more], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        rows = [row["ids"] for row in json.loads(done.stdout)["rows"]]
        assert rows == archc.generate(reader, PROMPTS, max_new_tokens=NEW, decoder_ids=start, stop_ids=[95]).ids


@pytest.mark.onnx
def test_an_export_answers_with_the_same_ids(reader: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "reader.yaml").write_text(SPEC, "utf-8")
    archc.save_weights(reader, tmp_path / "model.safetensors")
    made_for = ["--provider", "cpu", "--dtype", "f32", "--max-model-len", "32", "--no-check"]
    words = ["export", str(tmp_path / "reader.yaml"), "--weights", str(tmp_path / "model.safetensors"), *made_for]
    done = CliRunner().invoke(program, [*words, "-o", str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    words = [
        "run",
        str(tmp_path / "out"),
        "--provider",
        "cpu",
        "--threads",
        "1",
        "--max-new-tokens",
        str(NEW),
        "--json",
    ]
    words += [word for prompt in PROMPTS for word in ("--prompt-ids", ",".join(map(str, prompt)))]
    done = CliRunner().invoke(program, [*words, "--stop-ids", "95"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = [row["ids"] for row in json.loads(done.stdout)["rows"]]
    assert rows == archc.generate(reader, PROMPTS, max_new_tokens=NEW, stop_ids=[95]).ids


TWO_TOKENIZERS = SPEC.replace("tokenizer: {kind: external, vocab_size: 96,", "tokenizer: {kind: bytes,").replace(
    "ffn: mlp}\n", "ffn: mlp, tokenizer: {kind: bytes}, embedding: {hidden_size: 32}}\n", 1
)


def test_an_encoder_with_a_tokenizer_of_its_own_reads_the_prompt(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "two.yaml").write_text(TWO_TOKENIZERS, "utf-8")
    model = archc.build(archc.load_spec(tmp_path / "two.yaml"), device="cpu", seed=0)
    expected = archc.generate(model, [list(b"tea")], max_new_tokens=4).ids
    words = ["generate", str(tmp_path / "two.yaml"), "--prompt", "tea", "--max-new-tokens", "4", "--device", "cpu"]
    done = CliRunner().invoke(program, [*words, "--stop-ids", "255", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [row["ids"] for row in json.loads(done.stdout)["rows"]] == expected
    done = CliRunner().invoke(program, [*words, "--tokenizer", str(tmp_path / "two.yaml")])
    assert "encoder and decoder have tokenizers of their own" in done.output
