"""Caches that lie still: the same bits as caches that are copied from call to call, in buffers that are made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from archc_exporters.onnx.session import Conversation
from archc_exporters.runtime.buffers import Block, View
from archc_exporters.runtime.engine import Engine
from archc_exporters.runtime.folder import read_folder
from archc_exporters.runtime.prefill import Call, calls
from tests.onnx.conftest import VOCABULARY
from tests.runtime.conftest import FAMILIES

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

ALONE = (((9,), True), ((4,), False), ((3,), True), *[((1,), True)] * 4)
RAGGED = (((9, 5), True), *[((1, 1), True)] * 5)


def pair(ready: Any, batch: int) -> tuple[Engine, Conversation]:
    model = ready.load()
    engine = model.engine(batch, 32)
    return engine, Conversation(model.session, batch=batch, capacity=engine.capacity)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("script", [ALONE, RAGGED], ids=["alone", "ragged"])
@pytest.mark.parametrize("name", [*FAMILIES, "forgetting", "minimax", "jamba"])
def test_bits_equal_those_of_copied_caches(
    ready: Callable[..., Any], name: str, dtype: str, script: tuple[tuple[tuple[int, ...], bool], ...]
) -> None:
    batch = len(script[0][0])
    engine, talk = pair(ready(name, dtype), batch)
    growing = {cache.input for cache in engine.contract.caches if cache.growth == "append"}
    rng = np.random.default_rng(7)
    for counts, wanted in script:
        ids, valid = rng.integers(0, VOCABULARY, (batch, max(counts))), np.array(counts)
        got, want = engine.step(ids, valid, wanted=wanted), talk.step(ids, valid)
        if got is None:
            assert not wanted
        else:
            assert np.array_equal(got, want[np.arange(batch), valid - 1])
        for key, view in engine.caches().items():
            for row, length in enumerate(engine.lengths):
                # Behind the tokens of a row lies what padding left there, or nothing that anybody wrote.
                used = slice(None) if key not in growing else np.s_[:, :length]
                assert np.array_equal(view.numpy()[row][used], talk.caches[key][row][used]), key
        assert np.array_equal(engine.lengths, talk.lengths)


@pytest.mark.parametrize("name", FAMILIES)
def test_one_row_is_fed_as_if_it_were_alone(ready: Callable[..., Any], name: str) -> None:
    rng = np.random.default_rng(8)
    first, more = rng.integers(0, VOCABULARY, (2, 6)), rng.integers(0, VOCABULARY, (1, 5))
    engine, _ = pair(ready(name), 2)
    alone, _ = pair(ready(name), 1)
    engine.step(first)
    before = {key: view.numpy()[0].copy() for key, view in engine.caches().items()}
    alone.step(first[1:])
    got, want = engine.step_row(1, more), alone.step(more)
    assert got is not None
    assert want is not None
    assert np.abs(got - want).max() < 1e-5
    assert engine.lengths.tolist() == [6, 11]
    for key, view in engine.caches().items():
        assert np.array_equal(view.numpy()[0], before[key]), f"{key} of the other row"
        assert np.abs(view.numpy()[1] - alone.caches()[key].numpy()[0]).max() < 1e-5, key


@pytest.mark.parametrize("option", [None, "batched_chunks", "sliding_window_cache"])
@pytest.mark.parametrize("name", [*FAMILIES, "slopes", "forgetting", "minimax", "jamba"])
def test_every_cache_is_one_buffer_and_no_step_makes_another(
    ready: Callable[..., Any], name: str, option: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ready(name, **({option: True} if option else {})).load()
    assert all(cache.in_place for cache in model.contract.caches)
    engine = model.engine(2, 32)
    places = {key: view.pointer for key, view in engine.caches().items()}
    engine.step(np.ones((2, 5), np.int64))
    engine.step(np.ones((2, 1), np.int64))
    forbid_buffers(monkeypatch)
    for _ in range(6):
        engine.step(np.ones((2, 1), np.int64))
        for kept in engine._kept:
            past, present = kept.past(engine._turn), kept.present(engine._turn)
            assert past.pointer == present.pointer == places[kept.cache.input]
    assert engine.cache_bytes == model.contract.cache_bytes(batch=2, capacity=engine.capacity)


@pytest.mark.parametrize("name", FAMILIES)
def test_buffers_that_take_turns_change_no_token_and_are_two(
    ready: Callable[..., Any], name: str, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ready(name).load()
    wanted = model.generate(prompts, max_new_tokens=6, chunk_size=8).ids
    apart(model, {cache.input for cache in model.contract.caches})
    assert model.generate(prompts, max_new_tokens=6, chunk_size=8).ids == wanted
    # One of them only, as of a file with a layer of somebody else's.
    apart(model, {model.contract.caches[0].input})
    assert model.generate(prompts, max_new_tokens=6, chunk_size=8).ids == wanted
    engine = model.engine(2, 32)
    for _ in range(2):
        engine.step(np.ones((2, 1), np.int64))
    forbid_buffers(monkeypatch)
    turning = engine._kept[0]
    seen = set[int]()
    for _ in range(4):
        engine.step(np.ones((2, 1), np.int64))
        seen.add(turning.past(engine._turn).pointer)
    assert seen == {block.pointer for block in turning.blocks}
    assert len(seen) == 2


def apart(model: Any, names: set[str]) -> None:
    """Say that past and present of these caches can't be one buffer."""
    caches = tuple(cache.model_copy(update={"in_place": cache.input not in names}) for cache in model.contract.caches)
    model.contract = model.contract.model_copy(update={"caches": caches})


def forbid_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: Any) -> None:
        raise AssertionError("a step made a buffer")

    monkeypatch.setattr(Block, "__init__", no_more)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_part_of_a_block_is_read_and_overwritten_alone(ready: Callable[..., Any], dtype: str) -> None:
    session = ready("llama").load().session
    block, other = Block(200, "cpu"), Block(200, "cpu")
    part, source = View(session, block, dtype, (2, 3), 32), View(session, other, dtype, (2, 3))
    source.numpy()[...] = np.arange(6).reshape(2, 3)
    part.take(source)
    assert part.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    size = 6 * part.dtype.itemsize
    assert block.host is not None
    assert not block.host[:32].any()
    assert not block.host[32 + size :].any()


def test_rows_of_a_batch_start_at_aligned_bytes() -> None:
    assert all(Block(size, "cpu").pointer % 64 == 0 for size in (0, 1, 100, 4096))


@pytest.mark.parametrize(
    ("lengths", "chunk", "batched", "ragged", "wanted"),
    [
        ((5,), 8, False, False, [((5,), None)]),
        ((20,), 8, False, True, [((8,), None), ((8,), None), ((4,), None)]),
        ((20, 3), 8, True, True, [((8, 3), None), ((8, 0), None), ((4, 0), None)]),
        ((20, 10), 8, False, True, [((8, 8), None), ((8, 2), 0), ((8, 2), 1), ((4, 0), 0)]),
        ((9, 9), 8, False, True, [((8, 8), None), ((1, 1), None)]),
        ((9, 4), 16, False, False, [((9, 4), 0), ((9, 4), 1)]),
        ((7, 7), 16, False, False, [((7, 7), None)]),
    ],
)
def test_chunks_are_fed_together_where_the_file_takes_them(
    ready: Callable[..., Any],
    lengths: tuple[int, ...],
    chunk: int,
    batched: bool,
    ragged: bool,
    wanted: list[tuple[tuple[int, ...], int | None]],
) -> None:
    contract = read_folder(ready("llama").folder)
    told = contract.model_copy(update={"batched_chunks": batched, "ragged_prompts": ragged})
    starts = iter(range(0, max(lengths), chunk))
    found = list(calls(lengths, told, chunk=chunk))
    assert [(call.counts, call.row) for call in found] == wanted
    assert {call.start for call in found} == set(starts)
    assert isinstance(found[0], Call)
