"""``archc run`` and ``archc bench`` as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result

from archc.cli.main import archc
from archc.estimation.estimate import estimate
from archc_exporters.runtime.folder import read_folder
from archc_exporters.runtime.model import load
from archc_exporters.runtime.traffic import decode_traffic

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

HERE = ("--provider", "cpu", "--threads", "1")


def invoke(*arguments: object, given: str = "") -> Result:
    command = [str(argument) for argument in arguments]
    return CliRunner().invoke(archc, command, input=given, catch_exceptions=False)


def test_text_goes_to_stdout_and_rates_to_stderr(writer: Path) -> None:
    done = invoke("run", writer, "--prompt", "hello", "--max-new-tokens", 9, *HERE)
    wanted = load(writer, provider="cpu", threads=1).generate("hello", max_new_tokens=9)
    assert wanted.texts is not None
    assert done.exit_code == 0
    assert done.stdout == wanted.texts[0] + "\n"
    assert done.stderr.startswith("archc: prompt 5 tokens, ")
    assert f"; decode {len(wanted.ids[0]) - 1} tokens, " in done.stderr


def test_a_length_is_told_as_it_was_understood(writer: Path) -> None:
    given = ("run", writer, "--prompt", "hello", "--max-new-tokens", 2, "--max-model-len", "0.03125k", *HERE)
    assert invoke(*given).stderr.endswith(", at most 32 tokens a sequence\n")
    assert json.loads(invoke(*given, "--json").stdout)["max_model_len"] == 32


def test_ids_are_printed_where_they_are_asked_for_or_all_there_is(ready: Callable[..., Any], writer: Path) -> None:
    done = invoke("run", writer, "--prompt", "hello", "--max-new-tokens", 3, "--ids", *HERE)
    ids = load(writer, provider="cpu", threads=1).generate("hello", max_new_tokens=3).ids[0]
    assert done.stdout == ",".join(map(str, ids)) + "\n"
    model = ready("llama")
    done = invoke("run", model.folder, "--prompt-ids", "1,2, 3", "--max-new-tokens", 4, *HERE)
    assert done.stdout == ",".join(map(str, model.greedy([1, 2, 3], 4))) + "\n"


def test_several_prompts_from_all_sources_come_in_order(writer: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("two")
    arguments = (
        *("run", writer, "--prompt", "one", "--prompt-ids", "97,98", "--prompt-file", tmp_path / "prompt.txt"),
        *("--prompt-file", "-", "--max-new-tokens", 2, *HERE),
    )
    done = invoke(*arguments, "--json", given="three")
    told = json.loads(done.stdout)
    assert [bytes(row["prompt"]) for row in told["rows"]] == [b"one", b"ab", b"two", b"three"]
    # A batch of one at a time gives the same.
    apart = json.loads(invoke(*arguments, "--json", "--batch-size", 1, given="three").stdout)
    assert apart["rows"] == told["rows"]
    assert apart["timings"]["prompt_tokens"] == told["timings"]["prompt_tokens"] == 13
    plain = invoke(*arguments, given="three").stdout
    assert [line for line in plain.splitlines() if line.startswith("prompt ")] == [f"prompt {n}:" for n in range(4)]


def test_a_tokenizer_that_was_handed_over_reads_the_prompt(writer: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["[END]", "the", "quick", "fox"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[END]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[END]"])
    (tmp_path / "given").mkdir()
    made.save(str(tmp_path / "given" / "tokenizer.json"))
    (tmp_path / "given" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[END]"}))
    options = ("--set", "tokenizer={kind: external, vocab_size: 4}", "--tokenizer", tmp_path / "given")
    out = tmp_path / "out"
    done = invoke(
        "export", writer / "spec.yaml", "-o", out, "--provider", "cpu", "--dtype", "f32", "--no-check", *options
    )
    assert done.exit_code == 0, done.stderr
    told = json.loads(invoke("run", out, "--prompt", "the fox", "--max-new-tokens", 6, "--json", *HERE).stdout)
    (row,) = told["rows"]
    assert row["prompt"] == [1, 3]
    assert row["text"].split() == [word for one in row["ids"] for word, number in words.items() if number == one != 0]
    # The end of a text is known from the tokenizer's own configuration.
    assert load(out, provider="cpu").contract.eos() == (0,)


def test_sampling_options_reach_the_model(writer: Path) -> None:
    options = ("--temperature", 1.5, "--top-k", 40, "--top-p", 0.9, "--seed", 3)
    done = invoke("run", writer, "--prompt", "x", "--max-new-tokens", 8, "--json", *options, *HERE)
    wanted = load(writer, provider="cpu", threads=1).generate(
        "x", max_new_tokens=8, temperature=1.5, top_k=40, top_p=0.9, seed=3
    )
    assert json.loads(done.stdout)["rows"][0]["ids"] == wanted.ids[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "archc: there is no prompt; give --prompt TEXT"),
        (("--prompt", ""), "archc: prompt 0 is empty"),
        (("--prompt-ids", "1,x"), "archc: --prompt-ids should be ids as in 1,2,3 (found '1,x')"),
        (("--prompt-ids", "1,999"), "archc: prompt 0 has the id 999; this model's ids are 0 to 256"),
        (("--prompt-file", "nothing.txt"), "archc: nothing.txt can't be read"),
        (("--prompt", "a", "--max-new-tokens", 100), "archc: a prompt of 1 tokens and 100 new ones are 101"),
        (("--prompt", "a", "--chunk-size", 3), "archc: chunk_size should be at least 8"),
        (("--prompt", "a", "--top-p", 0), "Invalid value for '--top-p'"),
        (("--prompt", "a", "--provider", "tpu"), "Invalid value for '--provider'"),
    ],
)
def test_mistakes_end_in_exit_code_2(writer: Path, arguments: tuple[object, ...], message: str) -> None:
    done = invoke("run", writer, "--threads", 1, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_problems_are_data_with_json(tmp_path: Path) -> None:
    done = invoke("run", tmp_path, "--prompt", "a", "--json")
    assert done.exit_code == 2
    assert "has no archc.json" in json.loads(done.stdout)["problems"][0]["message"]


def test_an_export_made_for_cuda_says_where_it_runs(ready: Callable[..., Any]) -> None:
    model = ready("llama", "float16", provider="cuda")
    done = invoke("run", model.folder, "--prompt-ids", "1", "--max-new-tokens", 1)
    assert done.exit_code == 0
    assert done.stderr.startswith("archc: runs on cpu; the file was made for cuda") or "; cuda" in done.stderr


def test_bench_prints_rates_and_the_bound(writer: Path) -> None:
    sizes = ("--prompt-tokens", 20, "--new-tokens", 6, "--batch-size", 2, "--rounds", 2)
    told = json.loads(invoke("bench", writer, *sizes, *HERE, "--json").stdout)
    assert (told["prompt_tokens"], told["new_tokens"], told["batch_size"], told["rounds"]) == (20, 6, 2, 2)
    for part in ("prefill", "decode"):
        assert 0 < told[part]["slowest"] <= told[part]["median"] <= told[part]["fastest"]
    a_step = told["weight_bytes_a_step"] + told["cache_bytes_a_step"]
    assert told["bound_tokens_per_second"] == pytest.approx(2 * told["bandwidth_bytes_per_second"] / a_step)
    assert told["share_of_bound"] == pytest.approx(told["decode"]["median"] / told["bound_tokens_per_second"])
    assert told["cache_bytes_a_step"] == 2 * (20 + 3) * 2 * 2 * 8 * 4
    text = invoke("bench", writer, *sizes, *HERE).stdout
    for part in ("prefill of 20", "decode of 6", "bandwidth", "bound", "reached", "counted:"):
        assert part in text


def test_bench_says_what_does_not_fit(writer: Path) -> None:
    done = invoke("bench", writer, "--prompt-tokens", 60, "--new-tokens", 5, *HERE)
    assert done.exit_code == 2
    assert "60 + 5 tokens are 65, more than the 64 of max_model_len" in done.stderr


def test_a_dense_step_reads_all_weights_and_one_row_of_the_table(ready: Callable[..., Any]) -> None:
    model = ready("llama")
    found = decode_traffic(model.folder, read_folder(model.folder), batch=1, rows=10)
    row_bytes = 32 * 4
    weights = estimate(model.graph, dtype="float32").weights.bytes - 61 * row_bytes + row_bytes
    # Constants of shapes and the rows of rope tables are a few bytes more.
    assert 0 <= found.weight_bytes - weights < 512
    assert found.cache_bytes == 10 * estimate(model.graph, dtype="float32").cache.bytes_per_token


def test_a_mixture_s_step_reads_the_chosen_experts(ready: Callable[..., Any]) -> None:
    model = ready("gpt-oss")
    contract = read_folder(model.folder)
    proto = onnx.load(model.folder / "model.onnx", load_external_data=False)
    mixtures = [node for node in proto.graph.node if node.op_type == "MoE"]
    assert len(mixtures) == 2
    one, two, all_of_them = (
        decode_traffic(model.folder, contract, batch=batch, rows=1).weight_bytes for batch in (1, 2, 8)
    )
    # 8 experts of 3 matrices (32 x 16) and their biases, 3 of them a token, in two layers.
    expert = (3 * 32 * 16 + 2 * 16 + 32) * 4
    row_bytes = 32 * 4
    assert 0 <= two - one - (2 * 3 * expert + row_bytes) < 256
    assert 0 <= all_of_them - one - (2 * 5 * expert + 7 * row_bytes) < 1024
