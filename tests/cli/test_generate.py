"""``archc generate`` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import archc  # noqa: E402
from archc.cli.main import archc as program  # noqa: E402
from tests.generation.conftest import PADDED  # noqa: E402

pytestmark = pytest.mark.torch

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "padded.yaml"
    path.write_text(PADDED)
    return path


@pytest.fixture(scope="module")
def folder(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of archc build."""
    out = tmp_path_factory.mktemp("built") / "out"
    CliRunner().invoke(program, ["build", str(spec), "-o", str(out), "--seed", "3"], catch_exceptions=False)
    return out


def expected(folder: Path, prompts: Any, **options: Any) -> Any:
    loaded = archc.load_spec(folder / "spec.yaml")
    model = archc.load_weights(archc.build(loaded, device="cpu", dtype="float32"), folder / "model.safetensors")
    return archc.generate(model, prompts, tokenizer=loaded.tokenizer.load("."), stop_ids=[256], **options)


def test_text_goes_to_stdout_and_rates_to_stderr(invoke: Invoke, folder: Path) -> None:
    done = invoke("generate", folder, "--prompt", "hello", "--max-new-tokens", 9, "--device", "cpu")
    made = expected(folder, "hello", max_new_tokens=9)
    assert done.exit_code == 0
    assert done.stdout == made.texts[0] + "\n"
    assert done.stderr.startswith("archc: prompt 5 tokens, ")
    assert f"; decode {len(made.ids[0]) - 1} tokens, " in done.stderr
    assert done.stderr.endswith("; cpu, float32\n")


def test_json_holds_every_row_whatever_the_batch(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("a longer prompt")
    arguments = (
        *("generate", folder, "--prompt", "one", "--prompt-ids", "97,98", "--prompt-file", tmp_path / "prompt.txt"),
        *("--max-new-tokens", 6, "--temperature", 1.5, "--top-p", 0.9, "--min-p", 0.01, "--seed", 5, "--json"),
        *("--repetition-penalty", 1.2, "--device", "cpu"),
    )
    told = json.loads(invoke(*arguments).stdout)
    made = expected(
        folder,
        ["one", [97, 98], "a longer prompt"],
        max_new_tokens=6,
        temperature=1.5,
        top_p=0.9,
        min_p=0.01,
        seed=5,
        repetition_penalty=1.2,
    )
    assert (told["name"], told["device"], told["dtype"]) == ("padded", "cpu", "float32")
    assert [row["ids"] for row in told["rows"]] == made.ids
    assert [row["text"] for row in told["rows"]] == made.texts
    assert [bytes(row["prompt"]) for row in told["rows"]] == [b"one", b"ab", b"a longer prompt"]
    assert told["timings"]["decode_tokens_per_second"] > 0
    for batch in (1, 2):
        assert json.loads(invoke(*arguments, "--batch-size", batch).stdout)["rows"] == told["rows"]


def test_a_spec_with_weights_is_the_folder_of_both(invoke: Invoke, spec: Path, folder: Path) -> None:
    words = ("--prompt", "hello", "--max-new-tokens", 5, "--ids", "--device", "cpu")
    done = invoke("generate", spec, "--weights", folder / "model.safetensors", *words)
    assert done.stdout == ",".join(map(str, expected(folder, "hello", max_new_tokens=5).ids[0])) + "\n"
    assert "random" not in done.stderr


def test_a_spec_without_weights_says_that_its_answer_is_noise(invoke: Invoke) -> None:
    done = invoke("generate", "tiny-llama", "--prompt-ids", "1,2,3", "--max-new-tokens", 4, "--dtype", "f32")
    assert done.exit_code == 0
    assert len(done.stdout.split(",")) == 4
    assert done.stderr.startswith("archc: no weights are given; these are random")


def test_stop_ids_end_an_answer(invoke: Invoke, folder: Path) -> None:
    ids = expected(folder, "hello", max_new_tokens=9).ids[0]
    words = ("generate", folder, "--prompt", "hello", "--max-new-tokens", 9, "--json", "--device", "cpu")
    (row,) = json.loads(invoke(*words, "--stop-ids", f"{ids[4]},7").stdout)["rows"]
    assert row["ids"] == ids[: ids.index(ids[4]) + 1]
    assert row["finished"] == "stop"


def test_the_end_of_text_is_what_the_folder_generates_with(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    import shutil

    other = tmp_path / "other"
    shutil.copytree(folder, other)
    ids = expected(folder, "hello", max_new_tokens=9).ids[0]
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[2], 1]}))
    words = ("--prompt", "hello", "--max-new-tokens", 9, "--json", "--device", "cpu")
    (row,) = json.loads(invoke("generate", other, *words).stdout)["rows"]
    assert row["ids"] == ids[: ids.index(ids[2]) + 1]
    (other / "generation_config.json").write_text("[")
    done = invoke("generate", other, *words)
    assert (done.exit_code, "generation_config.json can't be read" in done.stderr) == (2, True)


def test_a_tokenizer_is_taken_from_where_it_is_named(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    from archc_plugins.tokenizer.char import Char

    made = Char(vocab_size=200, unk_token_id=0).train(["hello world"])
    made.save(str(tmp_path / "tokenizer.json"))
    words = ("generate", folder, "--prompt", "hello", "--max-new-tokens", 2, "--json", "--device", "cpu")
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        (row,) = json.loads(invoke(*words, "--tokenizer", place).stdout)["rows"]
        assert row["prompt"] == made.encode("hello").ids
    Char(vocab_size=300, unk_token_id=299).train(["hello world"]).save(str(tmp_path / "tokenizer.json"))
    done = invoke(*words, "--tokenizer", tmp_path)
    assert done.exit_code == 2
    assert "has the id 299, and the spec says that there are 257 ids" in done.stderr


def test_a_tokenizer_that_stayed_elsewhere_is_missed_by_text_alone(
    invoke: Invoke, folder: Path, tmp_path: Path
) -> None:
    import shutil

    other = tmp_path / "other"
    shutil.copytree(folder, other)
    spec = (other / "spec.yaml").read_text("utf-8")
    (other / "spec.yaml").write_text(spec.replace("kind: bytes", "kind: bytes\n  file: gone.json"), "utf-8")
    done = invoke("generate", other, "--prompt-ids", "1,2", "--max-new-tokens", 3, "--device", "cpu")
    assert done.exit_code == 0
    assert len(done.stdout.split(",")) == 3
    assert "gone.json: can't be read" in done.stderr
    done = invoke("generate", other, "--prompt", "x", "--device", "cpu")
    assert (done.exit_code, "gone.json: can't be read" in done.stderr) == (2, True)


def test_an_older_tokenizer_is_named(invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "out"
    invoke("build", "tiny-llama", "-o", out, "--dtype", "f32")
    (out / "tokenizer.model").write_bytes(b"")
    done = invoke("generate", out, "--prompt", "x")
    assert done.exit_code == 2
    assert "tokenizer.model becomes a tokenizer.json by transformers' AutoTokenizer" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny-llama"], "there is no prompt; give --prompt TEXT"),
        (["tiny-llama", "--prompt", "x"], "tiny-llama has no tokenizer, so a prompt is ids"),
        (["tiny-llama", "--prompt-ids", "1,x"], "--prompt-ids should be ids as in 1,2,3"),
        (["tiny-llama", "--prompt-ids", "1", "--stop-ids", "a"], "should be ids as in 1,2,3"),
        (["tiny-llama", "--prompt-ids", "999999"], "prompt 0 has the id 999999"),
        (["no-such-spec", "--prompt-ids", "1"], "no-such-spec"),
        ([".", "--prompt-ids", "1"], "has neither spec.yaml"),
    ],
)
def test_what_a_user_can_fix_ends_in_2(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("generate", *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_an_export_is_for_another_command(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "archc.json").write_text("{}")
    done = invoke("generate", tmp_path, "--prompt-ids", "1")
    assert done.exit_code == 2
    assert f"archc run {tmp_path} runs it" in done.stderr


def test_weights_that_do_not_fit_are_an_error(invoke: Invoke, folder: Path) -> None:
    done = invoke("generate", "tiny-llama", "--weights", folder, "--prompt-ids", "1")
    assert done.exit_code == 2
    assert "don't fit" in done.stderr
