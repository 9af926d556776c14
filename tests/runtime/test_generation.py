"""What a folder writes: the tokens that torch finds likeliest, however prompts are cut, batched and padded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import archc
from archc.generation.result import Token
from archc_exporters.onnx.export import export
from archc_exporters.runtime.model import load
from tests.runtime.conftest import FAMILIES, NEW_TOKENS

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

TEXT_OF_TYPES = """
spec_version: 1
name: types
tokenizer: {kind: external, vocab_size: 96}
embedding: {hidden_size: 32, tie_word_embeddings: true, norm: true, type_vocab_size: 3}
position: {kind: rope, theta: 10000.0}
norm: {kind: rms_norm, eps: 1e-5}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}
ffns: {mlp: {kind: swiglu, intermediate_size: 48}}
stack: {num_layers: 1, block: pre_norm, mixer: attn, ffn: mlp}
"""
LAYOUTS = (*FAMILIES, "gqa keys", "forgetting", "slopes", "learned positions")


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_row_of_a_ragged_batch_continues_as_torch_does(
    ready: Callable[..., Any], prompts: list[list[int]], name: str
) -> None:
    model = ready(name)
    wanted = [model.greedy(prompt, NEW_TOKENS) for prompt in prompts]
    for chunk_size in (512, 8):
        found = model.load().generate(prompts, max_new_tokens=NEW_TOKENS, chunk_size=chunk_size)
        assert found.ids == wanted
        assert found.finished == ["length"] * 3


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("llama", "batched_chunks"),
        ("gpt-oss", "batched_chunks"),
        ("gpt-oss", "prune_head"),
        ("kimi-linear", "prune_head"),
        ("gpt-oss", "sliding_window_cache"),
        ("gqa keys", "sliding_window_cache"),
    ],
)
def test_the_form_of_the_file_changes_no_token(
    ready: Callable[..., Any], prompts: list[list[int]], name: str, option: str
) -> None:
    model = ready(name, **{option: True})
    for chunk_size in (512, 8):
        found = model.load().generate(prompts, max_new_tokens=NEW_TOKENS, chunk_size=chunk_size)
        assert found.ids == [model.greedy(prompt, NEW_TOKENS) for prompt in prompts]


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "int4"])
def test_a_rounded_cache_is_cut_and_batched_like_any_other(
    ready: Callable[..., Any], prompts: list[list[int]], kv_cache_dtype: str
) -> None:
    model = ready("llama", kv_cache_dtype=kv_cache_dtype).load()
    assert {cache.dtype for cache in model.contract.caches} == {"int8" if kv_cache_dtype == "int8" else "uint8"}
    whole = model.generate(prompts, max_new_tokens=NEW_TOKENS).ids
    assert whole == [model.generate([prompt], max_new_tokens=NEW_TOKENS).ids[0] for prompt in prompts]


def test_a_row_ends_at_its_stop_id_and_the_others_go_on(ready: Callable[..., Any], prompts: list[list[int]]) -> None:
    model = ready("llama")
    whole = model.load().generate(prompts, max_new_tokens=NEW_TOKENS).ids
    stop = whole[1][3]
    found = model.load().generate(prompts, max_new_tokens=NEW_TOKENS, stop_ids=[stop])
    for row, ids in enumerate(whole):
        if stop in ids:
            assert found.ids[row] == ids[: ids.index(stop) + 1]
            assert found.finished[row] == "stop"
        else:
            assert (found.ids[row], found.finished[row]) == (ids, "length")
    assert "stop" in found.finished


def test_generation_ends_when_all_rows_have(ready: Callable[..., Any], prompts: list[list[int]]) -> None:
    model = ready("llama").load()
    first = {ids[0] for ids in model.generate(prompts, max_new_tokens=1).ids}
    found = model.generate(prompts, max_new_tokens=NEW_TOKENS, stop_ids=first)
    assert [len(ids) for ids in found.ids] == [1, 1, 1]
    assert found.timings.decode_tokens == 0


def test_one_prompt_is_taken_alone(ready: Callable[..., Any], prompts: list[list[int]]) -> None:
    model = ready("kimi-linear").load()
    alone = model.generate(prompts[0], max_new_tokens=4)
    assert alone.ids == model.generate([prompts[0]], max_new_tokens=4).ids
    assert alone.prompts == [prompts[0]]


def test_draws_depend_on_the_seed_and_not_on_the_neighbours(
    ready: Callable[..., Any], prompts: list[list[int]]
) -> None:
    model = ready("llama").load()

    def drawn(given: list[list[int]], seed: int) -> list[list[int]]:
        return model.generate(given, max_new_tokens=NEW_TOKENS, temperature=1.0, top_k=30, top_p=0.95, seed=seed).ids

    assert drawn(prompts, 1) == drawn(prompts, 1) != drawn(prompts, 2)
    assert drawn(prompts[:1], 1)[0] == drawn(prompts, 1)[0]
    assert drawn([prompts[0], prompts[0]], 1)[0] != drawn([prompts[0], prompts[0]], 1)[1]


def test_tokens_are_told_as_they_come_and_their_text_adds_up(writer: Path) -> None:
    model = load(writer, provider="cpu", threads=1)
    told: list[Token] = []
    found = model.generate(["hello", "wörld 🙂"], max_new_tokens=24, temperature=1.0, on_token=told.append)
    assert found.texts is not None
    for row in range(2):
        mine = [token for token in told if token.row == row]
        assert [token.id for token in mine] == found.ids[row]
        assert "".join(token.text for token in mine) == found.texts[row]
        assert [token.is_last for token in mine] == [False] * (len(mine) - 1) + [True]
    assert found.prompts[0] == list(b"hello")
    assert found.prompts[1] == list("wörld 🙂".encode())


def test_ids_of_a_second_kind_are_zeros(tmp_path: Path) -> None:
    import torch

    graph = archc.expand(archc.loads_spec(TEXT_OF_TYPES))
    judge = archc.build(graph, device="cpu", seed=0)
    with torch.no_grad():
        judge.token_type_embeddings.weight.normal_(std=3.0, generator=torch.Generator().manual_seed(0))
    archc.save_weights(judge, tmp_path / "model.safetensors")
    export(
        graph, tmp_path / "out", provider="cpu", dtype="float32", weights=tmp_path / "model.safetensors", check=False
    )
    found = load(tmp_path / "out", provider="cpu", threads=1).generate([[5, 6, 7], [8]], max_new_tokens=4)
    for prompt, ids in zip(found.prompts, found.ids, strict=True):
        with torch.no_grad():
            logits = judge(torch.tensor([[*prompt, *ids]]))[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == ids


def test_progress_counts_the_tokens_of_all_prompts(ready: Callable[..., Any], prompts: list[list[int]]) -> None:
    seen: list[tuple[int, int]] = []
    model = ready("llama").load()
    model.generate(prompts, max_new_tokens=1, chunk_size=8, progress=lambda done, total: seen.append((done, total)))
    total = sum(map(len, prompts))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_the_default_length_is_the_room_that_is_left(ready: Callable[..., Any]) -> None:
    model = ready("llama").load()
    assert len(model.generate([[1, 2, 3]]).ids[0]) == 40 - 3
    assert len(model.generate([[1, 2, 3]], max_model_len=10).ids[0]) == 7
