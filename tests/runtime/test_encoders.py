"""Folders that read and folders that answer: ``archc.load``, ``archc run`` and ``archc bench`` beside torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from archc.cli.main import archc  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from archc.expansion import as_graph  # noqa: E402
from archc.graph.graph import Graph  # noqa: E402
from archc.spec.resolved import resolved  # noqa: E402
from archc.torch_backend.build import build  # noqa: E402
from archc.torch_backend.generate import generate  # noqa: E402
from archc.torch_backend.weights import save_weights  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from archc_exporters.runtime import encoder  # noqa: E402
from archc_exporters.runtime.encoder import Encoder  # noqa: E402
from archc_exporters.runtime.model import Model, load  # noqa: E402
from archc_exporters.runtime.provider import cuda_devices  # noqa: E402
from tests.onnx.conftest import draw  # noqa: E402
from tests.onnx.test_encoder_decoders import text_of as two_stacks  # noqa: E402
from tests.onnx.test_encoders import PICTURES, text_of  # noqa: E402

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

HERE = ("--provider", "cpu", "--threads", "1")
PREFIX = (
    text_of("{kind: rope, theta: 100.0}", "lm")
    .replace("encoder: {", "stack: {")
    .replace("mask: bidirectional", "mask: prefix")
    .replace("type_vocab_size: 2, ", "")
)
SPECS = {
    "hidden": text_of(),
    "pooler": text_of(head="{kind: pooler}"),
    "mlm": text_of(head="{kind: mlm, activation: gelu}"),
    "classes": text_of(head="{kind: classifier, num_labels: 3}"),
    "pictures": PICTURES,
    "biases": two_stacks("biases"),
    "turned": two_stacks("turned"),
    "prefix": PREFIX,
}
PROMPTS = [[5, 9, 11, 2, 7], [3, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9]]


class Ready:
    """An export for the CPU in float32, its graph and torch's model of the same weights."""

    def __init__(self, name: str, folder: Path, tokenizer: Path | None = None, **choices: Any) -> None:
        path = folder / "spec.yaml"
        path.write_text(SPECS[name], "utf-8")
        spec = resolved(str(path))
        self.graph: Graph = as_graph(spec.spec)
        self.torch = build(self.graph, device="cpu", seed=0)
        draw(self.torch, torch.float32)
        weights = save_weights(self.torch, folder / "weights.safetensors")
        self.folder = folder / "out"
        options = {"provider": "cpu", "dtype": "float32", "check": False, **choices}
        export(self.graph, self.folder, weights=weights, spec=spec, tokenizer=tokenizer, **options)

    def load(self) -> Any:
        return load(self.folder, provider="cpu", threads=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ready]:
    @cache
    def make(name: str, dtype: str = "float32") -> Ready:
        return Ready(name, tmp_path_factory.mktemp(name), dtype=dtype)

    return make


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(archc, [str(argument) for argument in arguments], catch_exceptions=False)


def test_rows_of_any_length_are_what_each_is_in_torch(made: Callable[..., Ready]) -> None:
    ready = made("pooler")
    model = ready.load()
    assert isinstance(model, Encoder)
    found = model.forward(PROMPTS)
    for row, ids in enumerate(PROMPTS):
        with torch.no_grad():
            hidden, pooled = ready.torch(torch.tensor([ids]))
        np.testing.assert_allclose(found["hidden_states"][row, : len(ids)], hidden[0].numpy(), atol=2e-5)
        np.testing.assert_allclose(found["pooler_output"][row], pooled[0].numpy(), atol=2e-5)


def test_a_mask_may_leave_out_what_stands_on_the_left(made: Callable[..., Ready]) -> None:
    model = made("hidden").load()
    ids, mask = np.array([[0, 0, 5, 9, 11], [1, 2, 3, 4, 5]]), np.array([[0, 0, 1, 1, 1], [1] * 5])
    found = model.forward(ids, mask)["hidden_states"]
    np.testing.assert_allclose(found[0, 2:], model.forward([[5, 9, 11]])["hidden_states"][0], atol=2e-5)


def test_token_types_are_zeros_unless_they_are_given(made: Callable[..., Ready]) -> None:
    ready, ids = made("hidden"), np.array([[5, 9, 11, 2]])
    types = np.array([[0, 0, 1, 1]])
    with torch.no_grad():
        wanted = ready.torch(torch.from_numpy(ids), token_type_ids=torch.from_numpy(types)).numpy()
    found = ready.load().forward(ids, token_type_ids=types)["hidden_states"]
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.abs(found - ready.load().forward(ids)["hidden_states"]).max() > 1e-2


def test_pictures_are_read_one_or_many(made: Callable[..., Ready]) -> None:
    ready = made("pictures")
    pixels = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)
    with torch.no_grad():
        wanted = ready.torch(torch.from_numpy(pixels)).numpy()
    model = ready.load()
    np.testing.assert_allclose(model.forward(pixels)["logits"], wanted, atol=2e-5)
    np.testing.assert_allclose(model.forward(pixels[1])["logits"], wanted[1:], atol=2e-5)
    with pytest.raises(ArchcError, match="pixel_values should be"):
        model.forward(pixels[:, :, :4])


@pytest.mark.parametrize(
    ("inputs", "more", "message"),
    [
        ([[40]], {}, "the id 40 is none of this model's, which are 0 to 39"),
        ([[1] * 65], {}, "65 tokens are more than the 64"),
        ([[]], {}, "there is nothing to read"),
        (["a text"], {}, "has no tokenizer, so inputs are ids"),
        ([[1, 2]], {"attention_mask": [[1]]}, "attention_mask should be"),
        ([[1, 2]], {"token_type_ids": [[1]]}, "token_type_ids should be"),
        ([[1, 2]], {"strange_ids": [[1, 2]]}, "strange_ids: this file has no such input"),
    ],
)
def test_what_an_encoder_cannot_read_is_said(
    made: Callable[..., Ready], inputs: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArchcError, match=message):
        made("hidden").load().forward(inputs, **more)


@pytest.mark.parametrize("name", ["biases", "turned"])
def test_a_decoder_answers_what_torch_answers(made: Callable[..., Ready], name: str) -> None:
    ready = made(name)
    model = ready.load()
    assert isinstance(model, Model)
    wanted = generate(ready.torch, PROMPTS, max_new_tokens=9)
    found = model.generate(PROMPTS, max_new_tokens=9, stop_ids=())
    assert found.ids == wanted.ids
    assert len({tuple(row) for row in found.ids}) > 1
    assert found.cache_bytes > 3 * 9 * sum(cache.bytes_per_source_token for cache in model.contract.caches)


def test_an_answer_may_begin_as_one_says(made: Callable[..., Ready]) -> None:
    ready = made("biases")
    wanted = generate(ready.torch, PROMPTS, max_new_tokens=5, decoder_ids=[4, 7, 2])
    assert ready.load().generate(PROMPTS, max_new_tokens=5, decoder_ids=[4, 7, 2], stop_ids=()).ids == wanted.ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_ids": [40]}, "decoder_ids should be one id or more from 0 to 39"),
        ({"prompts": [[1] * 65]}, "a prompt of 65 tokens is more than the 64"),
        ({"max_new_tokens": 64}, "are 65, more than the 64 of max_model_len"),
    ],
)
def test_what_cannot_be_answered_is_said(made: Callable[..., Ready], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchcError, match=message):
        made("biases").load().generate(**{"prompts": [[1, 2]], "max_new_tokens": 3, **options})


def test_a_prompt_is_the_prefix_and_goes_in_at_once(made: Callable[..., Ready]) -> None:
    ready = made("prefix")
    wanted = generate(ready.torch, PROMPTS, max_new_tokens=7)
    assert ready.load().generate(PROMPTS, max_new_tokens=7, stop_ids=(), chunk_size=8).ids == wanted.ids


def test_run_says_what_an_encoder_gives(made: Callable[..., Ready]) -> None:
    for name, words in (
        ("hidden", ["hidden_states (5 x 32): mean "]),
        ("pooler", ["hidden_states (5 x 32)", "pooler_output (32)"]),
        ("classes", ["logits (3)", "  classes: "]),
        ("mlm", ["logits (5 x 40)", "  likeliest: "]),
    ):
        done = invoke("run", made(name).folder, "--prompt-ids", "5,9,11,2,7", *HERE)
        assert done.exit_code == 0, done.output
        assert all(word in done.stdout for word in words), done.stdout


def test_run_gives_the_scores_of_classes_as_json(made: Callable[..., Ready]) -> None:
    done = invoke("run", made("classes").folder, "--prompt-ids", "5,9,11", "--prompt-ids", "1,2", "--json", *HERE)
    told = json.loads(done.stdout)
    assert [row["ids"] for row in told["rows"]] == [[5, 9, 11], [1, 2]]
    for row in told["rows"]:
        shares = [one["probability"] for one in row["outputs"]["logits"]["classes"]]
        assert shares == sorted(shares, reverse=True)
        assert abs(sum(shares) - 1) < 1e-6


def test_run_fills_a_masked_token(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["[MASK]", *(f"w{number}" for number in range(39))])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[MASK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["[MASK]"])
    made.save(str(tmp_path / "tokenizer.json"))
    ready = Ready("mlm", tmp_path, tokenizer=tmp_path / "tokenizer.json")
    done = invoke("run", ready.folder, "--prompt", "w1 [MASK] w3", "--json", *HERE)
    (place,) = json.loads(done.stdout)["rows"][0]["outputs"]["logits"]["filled"]
    with torch.no_grad():
        best = int(ready.torch(torch.tensor([[2, 0, 4]]))[0, 1, :40].argmax())
    assert place["at"] == 1
    assert place["candidates"][0]["id"] == best
    shown = invoke("run", ready.folder, "--prompt", "w1 [MASK] w3", *HERE).stdout
    assert "token 1: " in shown


def test_run_reads_a_picture_from_an_array(made: Callable[..., Ready], tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", np.zeros((3, 12, 12), np.float32))
    done = invoke("run", made("pictures").folder, "--prompt-file", tmp_path / "pixels.npy", *HERE)
    assert "classes: " in done.stdout
    assert "there is no picture" in invoke("run", made("pictures").folder, *HERE).stderr
    (tmp_path / "text.npy").write_text("no array")
    refused = invoke("run", made("pictures").folder, "--prompt-file", tmp_path / "text.npy", *HERE)
    assert refused.exit_code == 2
    assert "can't be read as pixel_values" in refused.stderr


def test_run_prints_an_answer(made: Callable[..., Ready]) -> None:
    ready = made("biases")
    done = invoke("run", ready.folder, "--prompt-ids", "5,9,11", "--max-new-tokens", 4, *HERE)
    wanted = generate(ready.torch, [[5, 9, 11]], max_new_tokens=4).ids[0]
    assert done.stdout == ",".join(map(str, wanted)) + "\n"


@pytest.mark.parametrize(("name", "unit"), [("pooler", "tokens"), ("pictures", "pictures")])
def test_bench_counts_what_an_encoder_reads(made: Callable[..., Ready], name: str, unit: str) -> None:
    sizes = ("--prompt-tokens", 16, "--batch-size", 2, "--rounds", 2)
    found = json.loads(invoke("bench", made(name).folder, *sizes, "--json", *HERE).stdout)
    assert found["unit"] == unit
    assert 0 < found["forward"]["slowest"] <= found["forward"]["median"] <= found["forward"]["fastest"]
    assert f"{unit} a second, 2 rounds" in invoke("bench", made(name).folder, *sizes, *HERE).stdout


def test_bench_of_an_answer_counts_what_the_decoder_reads_of_its_source(made: Callable[..., Ready]) -> None:
    ready = made("biases")
    sizes = ("--prompt-tokens", 16, "--new-tokens", 4, "--rounds", 1)
    found = json.loads(invoke("bench", ready.folder, *sizes, "--json", *HERE).stdout)
    caches = ready.load().contract.caches
    source = sum(cache.bytes_per_source_token for cache in caches) * 16
    own = sum(cache.bytes_per_token for cache in caches) * 2
    assert found["cache_bytes_a_step"] == source + own
    assert found["decode"]["median"] > 0


def test_bench_refuses_more_tokens_than_the_file_was_made_for(made: Callable[..., Ready]) -> None:
    done = invoke("bench", made("pooler").folder, "--prompt-tokens", 65, *HERE)
    assert done.exit_code == 2
    assert "65 tokens are more than the 64 of max_model_len" in done.stderr


def test_an_encoder_with_a_tokenizer_of_its_own_reads_prompts_by_that(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{n}": n for n in range(40)}, unk_token="w0"))
    words.save(str(tmp_path / "words.json"))
    own = "tokenizer: {kind: word, vocab_size: 40, file: words.json}, embedding: {hidden_size: 32, tie_word_embeddings: true}"
    (tmp_path / "spec.yaml").write_text(
        two_stacks("turned")
        .replace("{kind: external, vocab_size: 40, pad_token_id: 0}", "{kind: bytes}")
        .replace(", num_embeddings: 48", "")
        .replace("decoder: {", f"decoder: {{{own}, "),
        "utf-8",
    )
    spec = resolved(str(tmp_path / "spec.yaml"))
    graph = as_graph(spec.spec)
    export(graph, tmp_path / "out", provider="cpu", dtype="float32", spec=spec, check=False)
    told = json.loads((tmp_path / "out" / "archc.json").read_text("utf-8"))
    assert told["source_tokenizer"] == {"file": "source_tokenizer.json"}
    assert (told["source_vocab_size"], told["vocab_size"]) == (graph.source_vocab_size, 40)
    made = load(tmp_path / "out", provider="cpu", threads=1).generate(
        "abba", max_new_tokens=3, decoder_ids=[0], stop_ids=()
    )
    assert bytes(made.prompts[0]) == b"abba"
    assert made.texts is not None
    assert made.texts[0].startswith("w")
    again = resolved(str(tmp_path / "out" / "spec.yaml"))
    assert as_graph(again.spec).params().keys() == graph.params().keys()


def test_tokens_that_fill_up_a_multiple_change_nothing(
    made: Callable[..., Ready], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = made("pooler").load(), made("biases").load()
    outputs, answers = reader.forward(PROMPTS), writer.generate(PROMPTS, max_new_tokens=6, stop_ids=()).ids
    # As on CUDA, whose kernels want it.
    monkeypatch.setitem(encoder._FUSED_MULTIPLE, "cpu", 8)
    filled = reader.forward(PROMPTS)
    assert {name: value.shape for name, value in filled.items()} == {
        name: value.shape for name, value in outputs.items()
    }
    np.testing.assert_allclose(filled["pooler_output"], outputs["pooler_output"], atol=2e-5)
    assert writer.generate(PROMPTS, max_new_tokens=6, stop_ids=()).ids == answers


@pytest.mark.gpu
@pytest.mark.skipif(cuda_devices() == 0, reason="no CUDA device")
def test_what_cuda_gives_is_near_what_the_cpu_gives(tmp_path: Path) -> None:
    for name in ("pooler", "pictures", "biases", "turned"):
        (tmp_path / name).mkdir()
        ready = Ready(name, tmp_path / name, dtype="float16", provider="cuda")
        cpu, cuda = (load(ready.folder, provider=provider) for provider in ("cpu", "cuda"))
        if isinstance(cpu, Encoder):
            given: Any = PROMPTS if cpu.reads_ids else np.random.default_rng(0).standard_normal((2, 3, 12, 12))
            wanted, found = cpu.forward(given), cuda.forward(given)
            for output, value in wanted.items():
                last = np.abs(value.astype(np.float32) - found[output].astype(np.float32))
                # What stands for padding is nobody's.
                rows = [
                    last[row, : len(ids)] if last.ndim > 2 else last[row] for row, ids in enumerate(given[: len(last)])
                ]
                assert max(float(row.max()) for row in rows) < 0.05
        else:
            assert len(cuda.generate(PROMPTS, max_new_tokens=6, stop_ids=()).ids) == 3
