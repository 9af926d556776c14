"""torch.compile of compressed attention: one graph for steps that complete a window, one for those that do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import archc  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.torch_backend.examples import MIXERS, assert_close, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

CSA = MIXERS["compressed_attention csa"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_decoding_compiles_whole_and_soon_for_good():
    model = lively(small_spec(CSA, layers=1))
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    ids = ids_for(model, 2, 30)
    cache = archc.new_cache(model, batch=2, max_model_len=30)
    with torch.no_grad():
        expected = model(ids)
        parts = [model(ids[:, :17], Step.at(0, 17), cache)]
        for past in range(17, 30):
            # The first step is compiled as it is, later ones by whether they complete a window.
            with torch._dynamo.config.patch(error_on_recompile=past > 21):
                parts.append(run(ids[:, past : past + 1], Step.at(past, 1), cache))
    assert counter.frame_count == 3
    assert_close(torch.cat(parts, 1), expected, 3e-5)


def test_texts_of_any_length_are_run_on_two_graphs():
    model = lively(small_spec(CSA, layers=1))
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    with torch.no_grad():
        for seq in (20, 33, 47):
            ids = ids_for(model, 1, seq)
            assert_close(run(ids), model(ids), 3e-5)
    assert counter.frame_count == 2
