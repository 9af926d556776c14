"""torch.compile of attention to chosen blocks: one graph for steps that complete a block, one for those that do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import archc  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.torch_backend.examples import assert_close, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

HEADS = "num_heads: 4, num_kv_heads: 2, head_dim: 16"
MIXERS = {
    "nsa": f"{{kind: nsa, {HEADS}, compress_block_size: 4, compress_stride: 2, select_block_size: 4, num_selected_blocks: 3, "
    "num_local_blocks: 1, compress_intermediate_size: 20, sliding_window: 5}",
    "moba": f"{{kind: moba, {HEADS}, block_size: 4, topk: 3}}",
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_decoding_compiles_whole_and_soon_for_good(mixer):
    model = lively(small_spec(mixer, layers=1))
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    ids = ids_for(model, 2, 36)
    cache = archc.new_cache(model, batch=2, max_model_len=36)
    with torch.no_grad():
        expected = model(ids)
        parts = [model(ids[:, :17], Step.at(0, 17), cache)]
        for past in range(17, 36):
            # The first step is compiled as it is, later ones by whether they complete a block.
            with torch._dynamo.config.patch(error_on_recompile=past > 21):
                parts.append(run(ids[:, past : past + 1], Step.at(past, 1), cache))
    assert counter.frame_count == 3
    assert_close(torch.cat(parts, 1), expected, 3e-5)


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_texts_of_any_length_train_on_two_graphs(mixer):
    model = lively(small_spec(mixer, layers=1))
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    for seq in (20, 33, 47):
        ids = ids_for(model, 1, seq)
        results = []
        for forward in (run, model):
            model.zero_grad()
            logits = forward(ids)
            logits.square().mean().backward()
            results.append((logits.detach(), model.get_submodule("layers.0.mixer.q_proj").weight.grad.clone()))
        for got, want in zip(*results, strict=True):
            assert_close(got, want, 3e-5)
    assert counter.frame_count == 2
