"""A model is an ordinary ``nn.Module``: pickled, copied, printed, traced in errors, checkpointed."""

import copy
import inspect
import io
import pickle
import subprocess
import sys
import traceback

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed._composable import checkpoint  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (  # noqa: E402
    apply_activation_checkpointing,
)

import archc  # noqa: E402
from archc.torch_backend.build import to_graph_module  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.torch_backend.examples import TINY, assert_close, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

LOAD = """
import sys, torch
torch.set_num_threads(1)
path = sys.argv[1]
saved = torch.load(path, weights_only=False)
model, ids = saved["model"], saved["ids"]
with torch.no_grad():
    got = model(ids)
assert torch.equal(got, saved["logits"]), (got - saved["logits"]).abs().max()
assert type(model.layers[1]) is type(model.layers[2]), "equal layers lost their class"
print(len(model.layers))
"""


@pytest.mark.parametrize("name", TINY)
def test_a_whole_saved_model_loads_in_a_fresh_process(name, tmp_path):
    model = lively(name)
    ids = ids_for(model, 2, 9)
    if name != "tiny-kimi-linear":
        # Classes are found again by their text, here as there; one fresh process is proof enough.
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert type(loaded) is type(model)
        with torch.no_grad():
            assert torch.equal(loaded(ids), model(ids))
        return
    with torch.no_grad():
        saved = {"model": model, "ids": ids, "logits": model(ids)}
    torch.save(saved, tmp_path / "model.pt")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "model.pt")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "8"), run.stderr


@pytest.mark.parametrize("name", TINY)
def test_a_copy_has_the_numbers_and_nothing_else_in_common(name):
    model = lively(name)
    twin = copy.deepcopy(model)
    ids = ids_for(model, 1, 7)
    with torch.no_grad():
        expected = model(ids)
        assert torch.equal(twin(ids), expected)
        for weight in twin.parameters():
            weight.zero_()
        assert torch.equal(model(ids), expected)
    assert type(twin.layers[0]) is type(model.layers[0])
    assert (twin.lm_head.weight is twin.embed_tokens.weight) == (model.lm_head.weight is model.embed_tokens.weight)
    assert (
        archc.new_cache(twin, batch=1, max_model_len=8).keys()
        == archc.new_cache(model, batch=1, max_model_len=8).keys()
    )


def test_one_layer_pickles_alone():
    model = lively("tiny-kimi-linear")
    layer = pickle.loads(pickle.dumps(model.layers[3]))
    x = torch.randn(1, 6, 128)
    with torch.no_grad():
        assert torch.equal(layer(x), model.layers[3](x))


def test_equal_layers_share_a_class_and_unequal_ones_do_not():
    layers = archc.build("tiny-kimi-linear").layers
    assert isinstance(layers, nn.ModuleList)
    kinds = [type(layer) for layer in layers]
    assert kinds[0] is kinds[1] is kinds[2] is kinds[4] is kinds[5] is kinds[6]
    assert kinds[3] is kinds[7] is not kinds[0]
    # A layer calls a dense feed-forward and experts by one name, so the sources differ one scope below.
    assert type(layers[0].ffn) is not type(layers[1].ffn)
    assert type(layers[1].ffn) is type(layers[3].ffn)


def test_a_second_build_makes_no_new_classes():
    first, second = archc.build("tiny-gpt-oss"), archc.build("tiny-gpt-oss", device="cpu", seed=0)
    assert [type(a).__name__ for a in first.modules()] == [type(b).__name__ for b in second.modules()]
    assert type(first.layers[0]).forward.__code__ == type(second.layers[0]).forward.__code__


def test_the_source_is_seen_by_inspect_and_in_tracebacks():
    model = lively("tiny-kimi-linear")
    layer = model.layers[0]
    assert inspect.getsource(type(layer).forward).startswith("def forward(self, x")
    assert "self.q_proj(x)" in type(layer.mixer).code
    with pytest.raises(RuntimeError) as caught:
        layer(torch.zeros(1, 3, 5))
    text = "".join(traceback.format_exception(caught.value))
    assert "<archc Layer" in text
    assert "self.mixer_norm(x)" in text


def test_print_reads_like_an_architecture():
    text = repr(archc.build("tiny-kimi-linear"))
    assert text.startswith("Model(\n  (embed_tokens): Embedding(1024, 128)\n  (layers): ModuleList(")
    for line in (
        "(1-2): 2 x Layer(",
        "(q_proj): Linear(in_features=128, out_features=128, bias=False)",
        "(delta_rule): LinearAttention(heads=2, key_dim=64, value_dim=64)",
        "nope=32, rope=16, value=32, rank=64",
        "(router): Route(128 -> 2 of 8, sigmoid)",
        "(experts): Experts(8 x (128 -> 64 -> 128), silu)",
    ):
        assert line in text


@pytest.mark.parametrize("name", TINY)
def test_nested_graph_modules_give_the_same_logits(name):
    model = lively(name)
    graphs = to_graph_module(model)
    assert isinstance(graphs, torch.fx.GraphModule)
    assert isinstance(graphs.layers[0], torch.fx.GraphModule)
    ids = ids_for(model, 2, 9)
    cache = archc.new_cache(model, batch=2, max_model_len=9)
    with torch.no_grad():
        expected = model(ids)
        assert torch.equal(graphs(ids), expected)
        parts = [graphs(ids[:, a:b], Step.at(a, b - a), cache) for a, b in ((0, 5), (5, 6), (6, 9))]
    assert_close(torch.cat(parts, 1), expected, 2e-5)


def gradients(model, ids):
    """(gradients by plain name, bytes kept for the backward) of one step."""
    kept: dict[int, int] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(ids).square().mean()
    loss.backward()
    named = {name.replace("_checkpoint_wrapped_module.", ""): w.grad for name, w in model.named_parameters()}
    return named, sum(kept.values())


@pytest.mark.parametrize("way", ["wrapped", "composable"])
@pytest.mark.parametrize("name", TINY)
def test_checkpointing_keeps_the_gradients_and_less_memory(name, way):
    plain, checkpointed = lively(name), lively(name)
    if way == "wrapped":
        layers = set(checkpointed.layers)
        apply_activation_checkpointing(checkpointed, check_fn=lambda module: module in layers)
    else:
        for layer in checkpointed.layers:
            checkpoint(layer)
    ids = ids_for(plain, 2, 40)
    expected, bytes_plain = gradients(plain, ids)
    found, bytes_checkpointed = gradients(checkpointed, ids)
    assert found.keys() == expected.keys()
    for weight, gradient in found.items():
        assert_close(gradient, expected[weight], 1e-6)
    assert bytes_checkpointed < 0.5 * bytes_plain


def test_hooks_see_named_leaves():
    model = lively(small_spec())
    seen = []
    model.layers[1].mixer.attention.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model(ids_for(model, 1, 4))
    assert seen == [(1, 4, 64)]
