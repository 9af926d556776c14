"""Weights and caches hold exactly what the graph declares."""

import math

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.estimation.estimate import estimate  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.spec.shipped import shipped_specs  # noqa: E402
from tests.torch_backend.examples import FFNS, MIXERS, TINY, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@pytest.fixture(scope="module", params=sorted(shipped_specs()))
def shipped(request):
    """(graph, model on meta) of every shipped spec."""
    graph = expand(archc.load_spec(request.param))
    return graph, archc.build(graph)


def test_parameters_are_exactly_those_of_the_graph(shipped):
    graph, model = shipped
    trainable = {name: param for name, param in graph.params().items() if param.trainable}
    assert {name: tuple(weight.shape) for name, weight in model.named_parameters()} == {
        name: param.shape for name, param in trainable.items()
    }
    total = sum(weight.numel() for weight in model.parameters())
    assert total == sum(param.elements for param in trainable.values())
    assert total == estimate(graph).parameters.total


def test_buffers_are_exactly_what_is_not_trained(shipped):
    graph, model = shipped
    assert {name for name, _ in model.named_buffers()} == {n for n, p in graph.params().items() if not p.trainable}


def test_saved_names_are_those_of_the_graph_and_further_ones_of_its_tied_weights(shipped):
    graph, model = shipped
    weights = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    names = graph.params().keys()
    assert model.state_dict().keys() == weights.keys() >= names
    owners = {id(weights[name]) for name in names}
    assert len(owners) == len(names)
    assert all(id(weights[name]) in owners for name in weights.keys() - names)


def test_weights_on_meta_cost_nothing_and_have_the_declared_dtypes(shipped):
    graph, model = shipped
    for name, weight in model.state_dict().items():
        declared = graph.params().get(name)
        assert weight.is_meta
        assert declared is None or weight.dtype == (
            torch.float32 if declared.dtype == "model" else getattr(torch, declared.dtype)
        )


def test_a_model_on_meta_runs_on_meta():
    for name in TINY:
        model = archc.build(name)
        logits = model(torch.zeros(2, 9, dtype=torch.int64, device="meta"))
        assert logits.shape == (2, 9, 1024)
        assert logits.is_meta


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_are_one_parameter(tied):
    model = lively(small_spec(tied=tied))
    assert (model.lm_head.weight is model.embed_tokens.weight) == tied
    assert ("lm_head.weight" in dict(model.named_parameters())) != tied
    assert "lm_head.weight" in model.state_dict()


def test_a_tied_weight_gets_both_gradients():
    tied, untied = lively(small_spec(tied=True)), lively(small_spec(tied=False))
    untied.load_state_dict(tied.state_dict())
    for model in (tied, untied):
        model(ids_for(model, 2, 5)).square().sum().backward()
    both = untied.embed_tokens.weight.grad + untied.lm_head.weight.grad
    torch.testing.assert_close(tied.embed_tokens.weight.grad, both)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 8), (3, 17), (2, 1000)])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("name", TINY)
def test_cache_bytes_are_those_of_the_estimate(name, dtype, batch, length):
    model = archc.build(name, dtype=dtype)
    cache = archc.new_cache(model, batch=batch, max_model_len=length)
    costs = estimate(name, batch_size=batch, max_model_len=length, dtype=dtype)
    assert sum(tensor.nbytes for tensor in cache.values()) == costs.cache.allocated_bytes


@pytest.mark.parametrize("kv_dtype", BYTES)
@pytest.mark.parametrize("name", TINY)
def test_cache_bytes_follow_a_chosen_dtype(name, kv_dtype):
    cache = archc.new_cache(archc.build(name), batch=2, max_model_len=33, dtype=kv_dtype)
    costs = estimate(name, batch_size=2, max_model_len=33, dtype="float32", kv_cache_dtype=kv_dtype)
    assert sum(tensor.nbytes for tensor in cache.values()) == costs.cache.allocated_bytes
    assert all(t.dtype == torch.float32 for n, t in cache.items() if n.endswith("recurrent_state"))


@pytest.mark.parametrize("mixer", MIXERS)
def test_cache_tensors_have_the_declared_shapes(mixer):
    model = archc.build(small_spec(MIXERS[mixer]))
    graph = model.archc_graph
    cache = archc.new_cache(model, batch=3, max_model_len=21)
    assert {name: tuple(tensor.shape) for name, tensor in cache.items()} == {
        name: graph.state_shape(state, batch=3, max_model_len=21) for name, state in graph.states().items()
    }
    costs = estimate(graph, batch_size=3, max_model_len=21, dtype="float32")
    assert sum(4 * math.prod(tensor.shape) for tensor in cache.values()) == costs.cache.allocated_bytes


def test_a_shipped_cache_on_meta_is_as_large_as_estimated(shipped):
    graph, model = shipped
    cache = archc.new_cache(model, batch=4, max_model_len=5000, dtype="bfloat16")
    costs = estimate(graph, batch_size=4, max_model_len=5000, kv_cache_dtype="bfloat16")
    assert all(tensor.is_meta for tensor in cache.values())
    assert sum(tensor.nbytes for tensor in cache.values()) == costs.cache.allocated_bytes


def test_equal_seeds_give_equal_weights_and_others_give_others():
    spec = small_spec(MIXERS["kda"], FFNS["moe sigmoid corrected"])
    first, second, third = (archc.build(spec, device="cpu", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embed_tokens.weight"], third["embed_tokens.weight"])
    assert all(torch.isfinite(weight).all() for weight in first.values())
