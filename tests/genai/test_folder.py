"""What is written for onnxruntime-genai, and what is refused before anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from archc.cli.main import archc
from archc.errors import ArchcError
from archc.expansion import expand
from archc.spec.resolved import resolved
from archc_exporters.onnx.export import export
from archc_exporters.onnx.report import ExportReport
from tests.genai.specs import SPECS

pytestmark = [pytest.mark.genai, pytest.mark.onnx, pytest.mark.torch]

BYTES = "{kind: bytes, bos_token_id: 0, eos_token_id: [1, 2]}"
ENDS = "{kind: external, vocab_size: 61, eos_token_id: 7}"
REFUSED = """
spec_version: 1
name: refused
tokenizer: {kind: external, vocab_size: 61, eos_token_id: 1}
norm: {kind: rms_norm, eps: 1e-5}
max_position_embeddings: 40
position: {kind: rope, theta: 10000.0}
embedding: {hidden_size: 32, tie_word_embeddings: false}
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
  odd: {extends: gqa, head_dim: 12, sliding_window: 5}
  chunk: {extends: gqa, attention_chunk_size: 4}
  first: {extends: gqa, cache: {policy: window, window: 5, sink_tokens: 2}}
  mla: {kind: mla, num_heads: 2, kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 4, v_head_dim: 12}
  kda: {kind: kda, num_heads: 2, head_dim: 16, conv_kernel: 4}
  wide: {extends: kda, head_dim: 32}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: LAYERS, block: pre_norm, mixer: MIXERS, ffn: mlp}
"""


def exported(folder: Path, text: str, **options: Any) -> ExportReport:
    spec = folder / "spec.yaml"
    spec.write_text(text, "utf-8")
    described = resolved(str(spec), ())
    common: dict[str, Any] = {"provider": "cpu", "dtype": "float32", "check": False, "spec": described}
    return export(expand(described.spec), folder / "out", io="genai", **{**common, **options})


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "genai_config.json").read_text("utf-8"))


def test_a_configuration_names_the_inputs_and_the_ids_that_the_spec_states(tmp_path: Path):
    report = exported(tmp_path, SPECS["normed queries"].format(tokenizer=ENDS))
    model, search = (config_of(tmp_path)[part] for part in ("model", "search"))
    assert model["type"] == "decoder"
    assert (model["vocab_size"], model["context_length"], search["max_length"]) == (61, 40, 40)
    assert (model["eos_token_id"], model["pad_token_id"], "bos_token_id" in model) == (7, 7, False)
    decoder = model["decoder"]
    assert (decoder["num_attention_heads"], decoder["num_key_value_heads"], decoder["head_size"]) == (4, 2, 16)
    names = {value.name for value in onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph.input}
    assert {"input_ids", "attention_mask", "position_ids"} <= names
    assert {decoder["inputs"]["past_key_names"] % layer for layer in range(2)} <= names
    assert any("no tokenizer.pad_token_id is stated" in note for note in report.notes)


def test_a_tokenizer_gets_the_configuration_that_its_reader_opens(tmp_path: Path):
    exported(tmp_path, SPECS["llama"].format(tokenizer=BYTES))
    model = config_of(tmp_path)["model"]
    assert (model["bos_token_id"], model["eos_token_id"], model["pad_token_id"]) == (0, [1, 2], 1)
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text("utf-8"))
    assert written == {"tokenizer_class": "PreTrainedTokenizerFast"}
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_a_file_for_cuda_names_its_provider_and_rolls_windows_where_asked(tmp_path: Path):
    text = SPECS["windows and sinks"].format(tokenizer=ENDS)
    report = exported(tmp_path, text, provider="cuda", dtype="float16", sliding_window_cache=True)
    decoder = config_of(tmp_path)["model"]["decoder"]
    assert decoder["session_options"]["provider_options"] == [{"cuda": {}}]
    assert decoder["sliding_window"]["window_size"] == 5
    assert decoder["sliding_window"]["layers"] == [0, 2]
    rows = {cache.name: (cache.shape[2], cache.bytes_per_sequence) for cache in report.caches}
    assert rows["past_key_values.0.key"] == ("window_capacity_5", 2 * 5 * 8 * 2)
    assert rows["past_key_values.1.key"] == ("capacity", 0)


def test_windows_have_rows_for_all_tokens_where_they_do_not_roll(tmp_path: Path):
    report = exported(tmp_path, SPECS["windows and sinks"].format(tokenizer=ENDS))
    assert {cache.shape[2] for cache in report.caches} == {"capacity"}
    assert {cache.bytes_per_token for cache in report.caches} == {2 * 8 * 4, 16 * 4}


@pytest.mark.parametrize(
    ("mixers", "words"),
    [
        ("mla gqa", ["layers.0.mixer", "caches latent", "key, value, conv_state, recurrent_state"]),
        ("gqa chunk", ["layers.1.mixer", "chunks of 4"]),
        ("first gqa", ["2 first tokens beside a window"]),
        ("odd gqa", ["a head of 12 is no multiple of 8"]),
        ("kda wide gqa", ["layers.1.mixer", "recurrent_state of 2 x 32 x 32", "layers.0.mixer", "2 x 16 x 16"]),
        ("mla chunk mla mla mla", ["layers.0.mixer", "and 1 more", "chunks of 4"]),
    ],
)
def test_what_its_runtime_cannot_hold_is_refused_with_every_reason(mixers: str, words: list[str], tmp_path: Path):
    text = REFUSED.replace("LAYERS", str(len(mixers.split()))).replace("MIXERS", mixers)
    with pytest.raises(ArchcError) as error:
        exported(tmp_path, text)
    assert [word for word in (*words, "--io archc") if word not in str(error.value)] == []
    assert not (tmp_path / "out").exists()


def test_a_text_must_end_with_a_known_id(tmp_path: Path):
    text = SPECS["llama"].format(tokenizer="{kind: external, vocab_size: 61}")
    with pytest.raises(ArchcError, match=r"tokenizer\.eos_token_id"):
        exported(tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_windows_of_two_lengths_do_not_roll(tmp_path: Path):
    near, far = "sink_logits: true, sliding_window: 5", "sink_logits: true, sliding_window: 9"
    text = SPECS["windows and sinks"].format(tokenizer=ENDS)
    text = text.replace("head_dim: 16, sink_logits: true", f"head_dim: 16, {far}")
    assert near in text
    assert far in text
    with pytest.raises(ArchcError, match="windows of 5, 9 tokens"):
        exported(tmp_path, text, sliding_window_cache=True)
    assert exported(tmp_path, text).caches


def test_heads_that_give_no_logits_are_refused(tmp_path: Path):
    text = SPECS["llama"].format(tokenizer=ENDS) + "head: none\n"
    with pytest.raises(ArchcError, match="needs logits"):
        exported(tmp_path, text)


@pytest.mark.parametrize("name", ["llama", "windows and sinks", "odd heads", "gated deltanet hybrid"])
def test_a_written_file_is_run_in_its_own_convention(name: str, tmp_path: Path):
    report = exported(tmp_path, SPECS[name].format(tokenizer=ENDS), check=True)
    assert any("all numbers finite" in line for line in report.checks)


def test_a_file_with_rolling_windows_longer_than_a_trial_is_run_too(tmp_path: Path):
    text = SPECS["windows and sinks"].format(tokenizer=ENDS).replace("sliding_window: 5", "sliding_window: 30")
    report = exported(tmp_path, text, check=True, sliding_window_cache=True)
    assert any("all numbers finite" in line for line in report.checks)


def test_the_command_line_writes_such_a_folder(tmp_path: Path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPECS["llama"].format(tokenizer="{kind: external, vocab_size: 61}"), "utf-8")
    options = ["-o", str(tmp_path / "out"), "--io", "genai", "--provider", "cpu", "--dtype", "f32", "--no-check"]
    refused = CliRunner().invoke(archc, ["export", str(spec), *options])
    assert refused.exit_code == 2
    assert "--set tokenizer.eos_token_id=ID" in refused.stderr
    done = CliRunner().invoke(archc, ["export", str(spec), *options, "--set", "tokenizer.eos_token_id=3"])
    assert done.exit_code == 0, done.output
    assert "onnxruntime-genai's" in done.output
    assert config_of(tmp_path)["model"]["eos_token_id"] == 3


def test_windows_round_too_and_the_loss_is_measured_on_the_file(tmp_path: Path):
    text = SPECS["windows and sinks"].format(tokenizer=ENDS)
    report = exported(tmp_path, text, kv_cache_dtype="int8", check=True)
    assert {cache.dtype for cache in report.caches} == {"int8"}
    assert not any("not measured" in line for line in (*report.checks, *report.notes))
