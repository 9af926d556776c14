"""torch.compile: no graph breaks, equal numbers, one graph a distinct layer, and no recompilation as a context grows."""

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import archc  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.torch_backend.examples import FFNS, MIXERS, TINY, assert_close, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

DISTINCT_LAYERS = {
    "tiny-llama": 1,
    "tiny-kimi-linear": 3,
    "tiny-deepseek-v3": 2,
    "tiny-gpt-oss": 2,
    "tiny-qwen3-next": 2,
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def shortened(name):
    """A shipped spec with as many layers as it takes to have one of each kind."""
    layers = 4 if name in ("tiny-kimi-linear", "tiny-qwen3-next") else 2
    return archc.load_spec(name, [f"stack.num_layers={layers}"])


def step_of(model, run, ids):
    model.zero_grad()
    logits = run(ids)
    logits.square().mean().backward()
    return logits.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


def check_training(model, ids, backend, tolerance):
    expected, expected_gradients = step_of(model, model, ids)
    logits, gradients = step_of(model, torch.compile(model, fullgraph=True, backend=backend), ids)
    assert_close(logits, expected, tolerance)
    for name, gradient in gradients.items():
        assert_close(gradient, expected_gradients[name], tolerance)


@pytest.mark.parametrize("name", TINY)
def test_training_compiles_whole_with_equal_gradients(name):
    model = lively(shortened(name))
    counter = CompileCounterWithBackend("aot_eager")
    check_training(model, ids_for(model, 2, 20), counter, 2e-5)
    assert counter.frame_count == 1


def test_inductor_gives_equal_gradients():
    model = lively(small_spec(MIXERS["kda"], layers=1))
    check_training(model, ids_for(model, 2, 20), "inductor", 3e-5)


def test_inductor_decodes_into_the_cache():
    model = lively(small_spec(MIXERS["gqa short window"], layers=1))
    run = torch.compile(model, fullgraph=True)
    ids = ids_for(model, 2, 14)
    cache = archc.new_cache(model, batch=2, max_model_len=16)
    with torch.no_grad():
        parts = [model(ids[:, :4], Step.at(0, 4), cache)]
        parts += [run(ids[:, past : past + 1], Step.at(past, 1), cache) for past in range(4, 14)]
        assert_close(torch.cat(parts, 1), model(ids), 2e-5)


@pytest.mark.parametrize("name", TINY)
def test_texts_of_any_length_train_on_two_graphs(name):
    """The first length is compiled as it is, all others by one graph with a symbolic length."""
    model = lively(shortened(name))
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    for seq in (20, 33, 47, 130):
        ids = ids_for(model, 1, seq)
        assert_close(run(ids), model(ids), 2e-5)
    assert counter.frame_count == 2


def test_an_indexer_compiles_whole_and_its_decoding_on_one_graph():
    model = lively(small_spec(MIXERS["sparse_mla"], layers=1))
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    ids = ids_for(model, 2, 60)
    cache = archc.new_cache(model, batch=2, max_model_len=60)
    expected = model(ids)
    assert_close(run(ids), expected, 2e-5)
    counter.frame_count = 0
    with torch.no_grad():
        parts = [model(ids[:, :20], Step.at(0, 20), cache)]
        parts += [run(ids[:, past : past + 1], Step.at(past, 1), cache) for past in range(20, 60)]
    assert_close(torch.cat(parts, 1), expected, 2e-5)
    # The first step is compiled as it is, all others with a symbolic past.
    assert counter.frame_count <= 2


@pytest.mark.parametrize("ffn", [name for name in FFNS if name.startswith("moe")])
def test_a_mixture_of_experts_does_not_break_the_graph(ffn):
    model = lively(small_spec(ffn=FFNS[ffn], layers=1))
    compiled = torch.compile(model.layers[0].ffn, fullgraph=True, backend="eager")
    x = torch.randn(2, 9, 32)
    assert_close(compiled(x), model.layers[0].ffn(x), 1e-6)


@pytest.mark.parametrize("name", TINY)
def test_decoding_does_not_recompile_as_the_context_grows(name):
    model = lively(shortened(name))
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    ids = ids_for(model, 1, 16 + 7 + 64)
    cache = archc.new_cache(model, batch=1, max_model_len=ids.shape[1])
    with torch.no_grad():
        expected = model(ids)
        parts, past = [], 0
        for seq in (16, 7, 1):
            parts.append(run(ids[:, past : past + seq], Step.at(past, seq), cache))
            past += seq
        assert counter.frame_count == 3
        with torch._dynamo.config.patch(error_on_recompile=True):
            for past in range(24, ids.shape[1]):
                parts.append(run(ids[:, past : past + 1], Step.at(past, 1), cache))
    assert counter.frame_count == 3
    assert_close(torch.cat(parts, 1), expected, 3e-5)


@pytest.mark.parametrize("name", ["tiny-kimi-linear", "tiny-gpt-oss"])
def test_ragged_decoding_does_not_recompile_either(name):
    model = lively(shortened(name))
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(model, fullgraph=True, backend=counter)
    ids = ids_for(model, 2, 48)
    cache = archc.new_cache(model, batch=2, max_model_len=48)
    past, one = torch.tensor([9, 4]), torch.tensor([1, 1])
    with torch.no_grad():
        expected = model(ids)
        run(ids[:, :9], Step.ragged(torch.zeros(2, dtype=torch.int64), past, 9), cache)
        for number in range(30):
            column = torch.stack([ids[row, start] for row, start in enumerate(past.tolist())]).unsqueeze(1)
            with torch._dynamo.config.patch(error_on_recompile=number > 1):
                logits = run(column, Step.ragged(past, one, 1), cache)
            for row, start in enumerate(past.tolist()):
                assert_close(logits[row, 0], expected[row, start], 3e-5)
            past = past + 1
    assert counter.frame_count <= 4


@pytest.mark.parametrize("name", TINY)
def test_layers_compiled_one_by_one_cost_a_graph_a_distinct_layer(name):
    model = lively(name)
    ids = ids_for(model, 2, 16)
    with torch.no_grad():
        expected = model(ids)
    counter = CompileCounterWithBackend("eager")
    for layer in model.layers:
        layer.compile(fullgraph=True, backend=counter)
    logits = model(ids)
    logits.square().mean().backward()
    assert counter.frame_count == DISTINCT_LAYERS[name]
    assert_close(logits, expected, 1e-5)


@pytest.mark.parametrize("name", TINY)
def test_layers_compiled_one_by_one_share_graphs_over_a_cache(name):
    model = lively(name)
    ids = ids_for(model, 1, 40)
    with torch.no_grad():
        expected = model(ids)
    counter = CompileCounterWithBackend("eager")
    for layer in model.layers:
        layer.compile(fullgraph=True, backend=counter)
    cache = archc.new_cache(model, batch=1, max_model_len=40)
    parts, past = [], 0
    with torch.no_grad():
        for seq in (16, 7, 1):
            parts.append(model(ids[:, past : past + seq], Step.at(past, seq), cache))
            past += seq
        # A prefill, a chunk and a decode graph each.
        assert counter.frame_count <= 3 * DISTINCT_LAYERS[name]
        with torch._dynamo.config.patch(error_on_recompile=True):
            for past in range(24, 40):
                parts.append(model(ids[:, past : past + 1], Step.at(past, 1), cache))
    assert_close(torch.cat(parts, 1), expected, 3e-5)


def test_a_delta_rule_is_one_node_whatever_the_length():
    model = lively(small_spec(MIXERS["kda"], layers=1))
    seen = []

    def backend(graph_module, inputs):
        seen.append([node.target for node in graph_module.graph.nodes])
        return graph_module.forward

    for seq in (20, 100, 300):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, fullgraph=True, backend=backend)(ids_for(model, 1, seq))
    assert [targets.count(torch.ops.archc.gated_delta) for targets in seen] in ([1] * 3, [0] * 3)
    named = [sum("gated_delta" in str(target) for target in targets) for targets in seen]
    assert named == [1, 1, 1]
    assert len({len(targets) for targets in seen}) == 1
