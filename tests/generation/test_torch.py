"""What a torch model writes: the tokens of transformers, however prompts are cut, batched and padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from archc.generation.result import Token  # noqa: E402
from tests.generation.conftest import PADDED  # noqa: E402

pytestmark = pytest.mark.torch

FAMILIES = ("llama", "gemma3_text", "gpt_oss", "deepseek_v3", "kimi_linear", "qwen3_next")
NEW = 16
LENGTHS = (32, 7, 19)

Pair = Callable[[str], tuple[Any, Any]]


def prompts_of(oracle: Any) -> list[list[int]]:
    return [oracle.ids[row % 2, :length].tolist() for row, length in enumerate(LENGTHS)]


def by_transformers(oracle: Any, prompt: list[int], **options: Any) -> list[int]:
    """transformers' own generate, every token from a forward over all before it."""
    made = oracle.model.generate(
        torch.tensor([prompt]),
        max_new_tokens=NEW,
        do_sample=False,
        use_cache=False,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    return made[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(pair: Pair, name: str) -> None:
    oracle, model = pair(name)
    prompts = prompts_of(oracle)
    expected = [by_transformers(oracle, prompt) for prompt in prompts]
    for chunk_size in (512, 5):
        made = archc.generate(model, prompts, max_new_tokens=NEW, chunk_size=chunk_size)
        assert made.ids == expected
        assert made.finished == ["length"] * 3
        assert made.prompts == prompts
    assert archc.generate(model, prompts[0], max_new_tokens=NEW).ids == expected[:1]


@pytest.mark.parametrize("name", ["llama", "kimi_linear"])
def test_a_repetition_penalty_is_that_of_transformers(pair: Pair, name: str) -> None:
    oracle, model = pair(name)
    prompts = prompts_of(oracle)
    expected = [by_transformers(oracle, prompt, repetition_penalty=1.5) for prompt in prompts]
    assert archc.generate(model, prompts, max_new_tokens=NEW, repetition_penalty=1.5).ids == expected
    assert archc.generate(model, prompts, max_new_tokens=NEW).ids != expected


def test_draws_do_not_depend_on_neighbours_or_chunks(pair: Pair) -> None:
    oracle, model = pair("qwen3_next")
    prompts = prompts_of(oracle)
    options = {"max_new_tokens": NEW, "temperature": 1.3, "top_p": 0.95}
    together = archc.generate(model, prompts, seed=4, **options).ids
    assert archc.generate(model, prompts, seed=4, chunk_size=6, **options).ids == together
    assert archc.generate(model, prompts[2], seed=[(4, 2)], **options).ids == together[2:]
    assert archc.generate(model, prompts, seed=5, **options).ids != together


def test_a_row_ends_at_its_stop_id_and_the_others_go_on(pair: Pair) -> None:
    oracle, model = pair("llama")
    prompts = prompts_of(oracle)
    whole = archc.generate(model, prompts, max_new_tokens=NEW).ids
    stop = whole[1][3]
    told: list[Token] = []
    made = archc.generate(model, prompts, max_new_tokens=NEW, stop_ids=[stop], on_token=told.append)
    for row, ids in enumerate(whole):
        cut = ids[: ids.index(stop) + 1] if stop in ids else ids
        assert made.ids[row] == cut
        assert made.finished[row] == ("stop" if stop in ids else "length")
        assert [token.id for token in told if token.row == row] == cut
        assert [token.is_last for token in told if token.row == row] == [False] * (len(cut) - 1) + [True]
    assert made.texts is None
    assert made.timings.prompt_tokens == sum(LENGTHS)
    assert made.timings.decode_tokens == sum(len(ids) - 1 for ids in made.ids)


def test_rows_that_pad_a_table_are_never_drawn(padded: Any) -> None:
    with torch.no_grad():
        assert int(padded(torch.tensor([[65, 66]]))[0, -1].argmax()) >= 257
    for options in ({}, {"temperature": 2.0}, {"repetition_penalty": 2.0}):
        made = archc.generate(padded, [[65, 66], [67]], max_new_tokens=32, **options)
        assert max(max(row) for row in made.ids) < 257


def test_text_goes_in_and_comes_out_without_broken_characters(padded: Any) -> None:
    tokenizer = archc.loads_spec(PADDED).tokenizer.load(".")
    pieces: list[str] = []
    options = {"max_new_tokens": 40, "temperature": 3.0, "seed": 2}
    made = archc.generate(
        padded, "héllo 世", tokenizer=tokenizer, on_token=lambda token: pieces.append(token.text), **options
    )
    assert made.prompts == [list("héllo 世".encode())]
    assert made.texts == ["".join(pieces)]
    # How many marks stand for bytes that are no character is each decoder's own choice.
    whole = bytes(one for one in made.ids[0] if one < 256).decode(errors="ignore")
    assert len(whole) > 10
    assert made.texts[0].replace("\ufffd", "") == whole
    assert archc.generate(padded, made.prompts, **options).ids == made.ids


def test_a_tokenizer_that_is_handed_over_stays_as_it_is(padded: Any) -> None:
    tokenizer = archc.loads_spec(PADDED).tokenizer.load(".")
    tokenizer.enable_padding(length=9, pad_id=7, pad_token="x")
    tokenizer.enable_truncation(3)
    made = archc.generate(padded, "a text", tokenizer=tokenizer, max_new_tokens=1)
    assert made.prompts == [list(b"a text")]
    assert len(tokenizer.encode("a text").ids) == 9
    assert tokenizer.truncation["max_length"] == 3


def test_progress_counts_the_tokens_of_all_prompts(padded: Any) -> None:
    told: list[tuple[int, int]] = []
    archc.generate(padded, [[1] * 9, [2] * 4], max_new_tokens=1, chunk_size=4, progress=lambda *one: told.append(one))
    assert told == [(8, 13), (12, 13), (13, 13)]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "there is no prompt"),
        ([[]], {}, "prompt 0 is empty"),
        ([[1], [257]], {}, "prompt 1 has the id 257; this model's ids are 0 to 256"),
        ([[-1]], {}, "prompt 0 has the id -1"),
        ("a text", {}, "padded has no tokenizer here, so a prompt is ids"),
        (
            [[1] * 60],
            {"max_new_tokens": 5},
            "60 tokens and 5 new ones are 65, more than the 64 of max_position_embeddings",
        ),
        ([[1] * 65], {}, "more than the 64"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens should be at least 1"),
        ([[1]], {"chunk_size": 0}, "chunk_size should be at least 1"),
        ([[1]], {"temperature": -1.0}, "temperature should be 0 or more"),
        ([[1]], {"seed": [1, 2]}, "one for each of the 1 prompts"),
    ],
)
def test_what_cannot_be_generated_is_an_error(padded: Any, prompts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchcError, match=message):
        archc.generate(padded, prompts, **options)


def test_a_model_without_logits_or_weights_is_an_error() -> None:
    with pytest.raises(ArchcError, match="on the meta device"):
        archc.generate(archc.build(archc.loads_spec(PADDED)), [[1]])
    hidden = PADDED.replace("tie_word_embeddings: false, ", "") + "head: none\n"
    with pytest.raises(ArchcError, match="ends in hidden_states, not in logits"):
        archc.generate(archc.build(archc.loads_spec(hidden), device="cpu", seed=0), [[1]])


def test_the_room_that_is_left_is_the_default(padded: Any) -> None:
    assert len(archc.generate(padded, [[1] * 60]).ids[0]) == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("theta: 10000.0", "theta: 12345.0"),
        ("{kind: rope, theta: 10000.0}", "alibi"),
        ("{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}", "{kind: lightning, num_heads: 3, head_dim: 8}"),
    ],
)
def test_a_model_that_wrote_can_be_trained(old: str, new: str) -> None:
    spec = archc.loads_spec(PADDED.replace(old, new))
    models = [archc.build(spec, device="cpu", seed=0) for _ in range(2)]
    # Numbers that are kept from call to call are made first in the one that writes.
    archc.generate(models[0], [[1, 2, 3], [4]], max_new_tokens=4)
    for model in models:
        model(torch.tensor([[1, 2, 3, 4]])).square().mean().backward()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert all(not parameter.is_inference() for parameter in models[0].parameters())


def test_a_compiled_model_writes_the_same(padded: Any) -> None:
    # The tracer's part of torch.compile, without its compiler.
    compiled = torch.compile(padded, backend="eager")
    for prompts in ([[65, 66, 67]], [[65, 66, 67], [70]]):
        options = {"max_new_tokens": 6, "temperature": 1.0}
        assert archc.generate(compiled, prompts, **options).ids == archc.generate(padded, prompts, **options).ids


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "repetition_penalty": 1.2}], ids=str)
def test_a_gpu_writes_what_the_cpu_does(pair: Pair, options: dict[str, Any]) -> None:
    oracle, model = pair("llama")
    prompts = prompts_of(oracle)
    expected = archc.generate(model, prompts, max_new_tokens=NEW, **options).ids
    on_gpu = archc.build(archc.loads_spec(oracle.family.spec), device="cuda", dtype="float32")
    on_gpu.load_state_dict(model.state_dict())
    assert archc.generate(on_gpu, prompts, max_new_tokens=NEW, **options).ids == expected
