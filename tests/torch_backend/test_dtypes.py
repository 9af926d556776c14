"""Which weights keep float32, and what a model in bfloat16 gives."""

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from archc.torch_backend.weights import load_weights, materialise, save_weights  # noqa: E402
from tests.torch_backend.examples import TINY, assert_close, enliven, every_expert, ids_for, lively  # noqa: E402

pytestmark = pytest.mark.torch

FIXED = ("A_log", "dt_bias", "e_score_correction_bias")


@pytest.mark.parametrize("name", TINY)
def test_cast_keeps_what_the_graph_fixes(name):
    model = archc.cast(lively(name), "bf16")
    for weight, tensor in model.state_dict().items():
        assert tensor.dtype == (torch.float32 if weight.endswith(FIXED) else torch.bfloat16), weight
    assert (model.lm_head.weight is model.embed_tokens.weight) == (name == "tiny-llama")


@pytest.mark.parametrize("name", TINY)
def test_cast_gives_the_dtypes_and_numbers_of_a_build_in_that_dtype(name):
    source = lively(name)
    built = archc.build(name, device="cpu", dtype="bfloat16")
    built.load_state_dict(source.state_dict())
    cast = archc.cast(source, "bfloat16")
    expected = built.state_dict()
    for weight, tensor in cast.state_dict().items():
        assert tensor.dtype == expected[weight].dtype
        assert torch.equal(tensor, expected[weight])


@pytest.mark.parametrize("name", TINY)
def test_bfloat16_gives_nearly_the_same_logits_however_the_tokens_come(name):
    model = archc.build(every_expert(name), device="cpu", seed=0)
    ids = ids_for(model, 2, 24)
    with torch.no_grad():
        expected = model(ids)
        archc.cast(model, "bfloat16")
        logits = model(ids)
        cache = archc.new_cache(model, batch=2, max_model_len=24)
        pieces = [model(ids[:, a:b], Step.at(a, b - a), cache) for a, b in ((0, 11), (11, 12), (12, 20), (20, 24))]
    assert logits.dtype == torch.bfloat16
    for found in (logits, torch.cat(pieces, 1)):
        assert root_mean_square(found.float() - expected) < 0.05 * root_mean_square(expected)
    assert all(
        state.dtype == (torch.float32 if key.endswith("recurrent_state") else torch.bfloat16)
        for key, state in cache.items()
    )


def root_mean_square(x):
    return x.square().mean().sqrt().item()


@pytest.mark.parametrize("name", TINY)
def test_training_under_autocast_gives_float32_gradients(name):
    model = archc.build(every_expert(name), device="cpu", seed=0)
    ids = ids_for(model, 2, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids)
    with torch.no_grad():
        expected = model(ids)
    assert root_mean_square(logits.float() - expected) < 0.05 * root_mean_square(expected)
    logits.float().square().mean().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in model.parameters())
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


@pytest.mark.parametrize("name", TINY)
def test_a_model_from_meta_is_the_model_built_at_once(name, tmp_path):
    """Rope tables and all other derived constants are no buffers that a meta build would leave as garbage."""
    source = lively(name)
    file = save_weights(source, tmp_path / "model.safetensors")
    model = materialise(archc.build(name), "cpu")
    for tensor in model.state_dict().values():
        tensor.fill_(float("nan"))
    load_weights(model, file)
    ids = ids_for(source, 2, 9)
    with torch.no_grad():
        assert torch.equal(model(ids), source(ids))
    assert (model.lm_head.weight is model.embed_tokens.weight) == (name == "tiny-llama")


def test_to_empty_and_init_give_a_model_too():
    model = archc.build("tiny-gpt-oss").to_empty(device="cpu")
    archc.init(model, 3)
    expected = archc.build("tiny-gpt-oss", device="cpu", seed=3)
    ids = ids_for(model, 1, 9)
    with torch.no_grad():
        assert_close(enliven(model)(ids), enliven(expected)(ids), 0.0)


def test_float64_is_carried_through():
    for name in TINY:
        single, double = lively(name), archc.build(name, device="cpu", dtype=torch.float64)
        double.load_state_dict(single.state_dict())
        ids = ids_for(single, 1, 20)
        with torch.no_grad():
            logits = double(ids)
            assert logits.dtype == torch.float64
            assert_close(single(ids), logits, 1e-4)


@pytest.mark.parametrize("name", TINY)
def test_decoding_under_autocast_gives_nearly_the_same_logits(name):
    model = archc.build(every_expert(name), device="cpu", seed=0)
    ids = ids_for(model, 2, 24)
    cache = archc.new_cache(model, batch=2, max_model_len=24)
    with torch.no_grad():
        expected = model(ids)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pieces = [model(ids[:, a:b], Step.at(a, b - a), cache) for a, b in ((0, 11), (11, 12), (12, 20), (20, 24))]
    assert root_mean_square(torch.cat(pieces, 1).float() - expected) < 0.05 * root_mean_square(expected)
    assert all(state.dtype == torch.float32 for state in cache.values())
