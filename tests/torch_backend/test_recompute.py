"""Recomputation: gradients to the last bit, and less kept between forward and backward."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.errors import ArchcError  # noqa: E402
from archc.torch_backend.recompute import keeps  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.torch_backend.examples import MIXERS, ids_for, lively, small_spec, tokens  # noqa: E402

pytestmark = pytest.mark.torch

MODELS = ("tiny-llama", "tiny-kimi-linear", "tiny-deepseek-v3", "tiny-gpt-oss", "tiny-qwen3-next")


def step_of(model, *ids):
    model.zero_grad()
    logits = model(*ids)
    logits.float().square().mean().backward()
    return logits.detach(), {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


def kept_bytes(model, ids):
    """Distinct memory that saved tensors hold after a forward, weights left out."""
    known = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(ids)
    del logits
    return sum(found.values())


def check_equal(model, *ids, mode):
    expected, expected_gradients = step_of(model, *ids)
    assert archc.recompute(model, mode) is model
    logits, gradients = step_of(model, *ids)
    assert torch.equal(logits, expected)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, expected_gradients[name]), name


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_without_to_the_last_bit(name, mode):
    model = lively(name)
    check_equal(model, ids_for(model, 2, 24), mode=mode)


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_every_mixer_can_be_computed_again(mixer, mode):
    model = lively(small_spec(MIXERS[mixer]))
    check_equal(model, tokens(2, 19), mode=mode)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_layers_of_both_stacks_are_computed_again(mode):
    model = lively("tiny-t5")
    ids = tokens(2, 9)
    expected, expected_gradients = step_of(model, ids, None, None, False, tokens(2, 12, seed=1))
    archc.recompute(model, mode)
    logits, gradients = step_of(model, ids, None, None, False, tokens(2, 12, seed=1))
    assert torch.equal(logits, expected)
    assert all(torch.equal(gradients[name], gradient) for name, gradient in expected_gradients.items())


def test_each_mode_keeps_less_than_the_one_before():
    model = lively(small_spec(layers=4))
    ids = tokens(2, 32)
    none = kept_bytes(model, ids)
    full = kept_bytes(archc.recompute(model, "full"), ids)
    # What selective keeps of products is held by torch's checkpoint and not by autograd.
    assert full < none / 4
    assert kept_bytes(archc.recompute(model, "none"), ids) == none


def test_full_keeps_a_layers_input_and_what_layers_share():
    """What layers share, the rotation tables, is kept once however many there are."""
    layers, batch, seq, width = 5, 2, 32, 32
    spec = small_spec(layers=layers)
    model = archc.recompute(lively(spec), "full")
    fewer = archc.recompute(lively(small_spec(layers=layers - 2)), "full")
    a_layer = (kept_bytes(model, tokens(batch, seq)) - kept_bytes(fewer, tokens(batch, seq))) / 2
    assert a_layer == batch * seq * width * 4


def test_selective_keeps_what_products_return():
    model = archc.recompute(lively(small_spec(layers=1)), "selective")
    counted = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counted.append(str(func))
            return func(*args, **(kwargs or {}))

    logits = model(tokens(2, 19))
    with Count():
        logits.sum().backward()
    # 7 linears of a layer have two gradients each, the head has two: nothing is left that a forward computes.
    assert sum(name == "aten.mm.default" for name in counted) == 16
    assert not any("scaled_dot_product" in name and "backward" not in name for name in counted)


def test_kept_are_products_fused_attention_and_own_operators():
    aten = torch.ops.aten
    kept = [
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        torch.ops.archc.gated_delta.default,
        torch.ops.archc.grouped_linear.default,
    ]
    assert all(keeps(target) for target in kept)
    assert not any(keeps(target) for target in (aten.mul.Tensor, aten.silu.default, aten._to_copy.default))


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_a_cache_is_written_as_ever(mode):
    model = lively("tiny-kimi-linear")
    ids = ids_for(model, 2, 12)
    caches = [archc.new_cache(model, batch=2, max_model_len=12, device="cpu") for _ in range(2)]
    expected = model(ids, Step.at(0, 12), caches[0])
    archc.recompute(model, mode)
    assert torch.equal(model(ids, Step.at(0, 12), caches[1]), expected)
    assert all(torch.equal(tensor, caches[1][name]) for name, tensor in caches[0].items())


def test_names_copies_and_pickles_stay():
    model = lively("tiny-llama")
    ids = ids_for(model, 2, 12)
    names = list(model.state_dict())
    expected = step_of(model, ids)[1]
    archc.recompute(model, "full")
    assert list(model.state_dict()) == names
    kept = kept_bytes(model, ids)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other.layers[0]) is type(model.layers[0]) is type(model.layers[1])
        assert kept_bytes(other, ids) == kept
        gradients = step_of(other, ids)[1]
        assert all(torch.equal(gradients[name], gradient) for name, gradient in expected.items())


def test_hooks_of_a_layer_run_once():
    """FSDP2 gathers weights in a layer's hooks: a second forward inside them would gather nothing twice."""
    model = archc.recompute(lively("tiny-llama"), "full")
    seen = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda module, args: seen.append("before"))
        layer.register_forward_hook(lambda module, args, result: seen.append("after"))
    step_of(model, ids_for(model, 1, 8))
    assert seen == ["before", "after"] * len(model.layers)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputation_compiles_whole_with_equal_gradients(mode):
    torch._dynamo.reset()
    model = lively(small_spec())
    ids = tokens(2, 16)
    expected = step_of(model, ids)[1]
    archc.recompute(model, mode)
    gradients = step_of(model, ids)[1]
    model.zero_grad()
    torch.compile(model, fullgraph=True, backend="aot_eager")(ids).float().square().mean().backward()
    for name, weight in model.named_parameters():
        assert torch.equal(gradients[name], expected[name])
        torch.testing.assert_close(weight.grad, expected[name])
    torch._dynamo.reset()


def test_an_unknown_mode_is_said():
    with pytest.raises(ArchcError, match="recompute: 'some' is unknown; known: none, selective and full"):
        archc.recompute(archc.build("tiny-llama"), "some")
