"""Positions that are added to the embedding, and slopes: compiled, padded, and in half precision."""

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import archc  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.plugins.specs import gqa, tiny  # noqa: E402
from tests.torch_backend.examples import assert_close, ids_for, lively  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH = "max_position_embeddings: 80"
SPECS = {
    "learned": tiny(position="{kind: learned, offset: 2}", more=LENGTH),
    "sinusoidal": tiny(position="sinusoidal"),
    "alibi": tiny(position="alibi"),
    "alibi in a window": tiny(gqa("sliding_window: 6"), position="alibi"),
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("text", SPECS.values(), ids=SPECS)
def test_training_compiles_whole(text):
    model = lively(archc.loads_spec(text))
    counter = CompileCounterWithBackend("aot_eager")
    ids = ids_for(model, 2, 20)
    assert_close(torch.compile(model, fullgraph=True, backend=counter)(ids), model(ids), 2e-5)
    assert counter.frame_count == 1


@pytest.mark.parametrize("text", SPECS.values(), ids=SPECS)
def test_decoding_does_not_recompile_as_the_context_grows(text):
    model = lively(archc.loads_spec(text))
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    ids = ids_for(model, 1, 60)
    cache = archc.new_cache(model, batch=1, max_model_len=60)
    with torch.no_grad():
        parts, past = [], 0
        for seq in (16, 7, 1):
            parts.append(run(ids[:, past : past + seq], Step.at(past, seq), cache))
            past += seq
        with torch._dynamo.config.patch(error_on_recompile=True):
            for past in range(24, 60):
                parts.append(run(ids[:, past : past + 1], Step.at(past, 1), cache))
        assert_close(torch.cat(parts, 1), model(ids), 3e-5)
    assert counter.frame_count == 3


@pytest.mark.parametrize("text", SPECS.values(), ids=SPECS)
def test_half_precision_loses_no_more_than_it_must(text):
    model = archc.cast(lively(archc.loads_spec(text)), "bfloat16")
    ids = ids_for(model, 1, 40)
    with torch.no_grad():
        half = model(ids)
        exact = archc.cast(model, "float32")(ids)
    assert half.dtype == torch.bfloat16
    assert float((half.float() - exact).abs().mean()) < 0.01 * float(exact.abs().max())


def test_slopes_keep_near_keys_apart_in_half_precision_however_long_the_text():
    # By the key's own position bfloat16 would give the 256 last of 60,000 keys one score; by the distance near ones differ.
    from archc.torch_backend.leaves.softmax import falling

    query = torch.tensor([[60_000]])
    keys = torch.arange(59_990, 60_001).unsqueeze(0)
    fall = falling((0.5, 0.25), query, keys, None, torch.bfloat16)
    assert fall[0, 0, 0].tolist() == [-0.5 * distance for distance in range(10, -1, -1)]


def test_the_layers_of_a_training_step_keep_one_mask_and_none_is_left_after_it():
    from archc.torch_backend.leaves.softmax import _alive

    model = lively(archc.loads_spec(SPECS["alibi"]))
    loss = model(ids_for(model, 1, 17)).square().mean()
    assert len({id(mask) for mask in _alive.values() if mask.shape[-1] == 17}) == 1
    loss.backward()
    del loss
    assert not [mask for mask in _alive.values() if mask.shape[-1] == 17]
