"""The contract test of a kind: a spec that places it is built, run in every way, and compared with what the graph says."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from archc.graph.graph import Graph
from archc.graph.lockfile import to_text
from archc.graph.verify import verify
from archc.ir.op import Form, Pairs
from archc.ir.size import evaluate
from archc.spec.load import loads_spec
from archc.torch_backend.build import as_graph, build, new_cache
from archc.torch_backend.step import Step

BATCH, LENGTH, FIRST, SECOND = 2, 23, 11, 7


def check_spec(text: str, *, tolerance: float = 2e-5) -> None:
    """Check that everything read off a spec's graph agrees with the model that is built from it.

    The graph verifies itself and its lockfile is stable; built parameters and allocated cache bytes are the graph's;
    prefill in chunks, single steps and ragged rows give the logits of the whole forward within ``tolerance`` of their
    size; the readable twin agrees; FLOPs of each form and pair count are what torch's counter sees in the twin; every
    parameter has a finite gradient. The model should be tiny.

    Raises:
        AssertionError: one of them does not hold; the message says which.
        SpecError: the spec is wrong.
    """
    graph = as_graph(loads_spec(text))
    verify(graph)
    assert to_text(graph) == to_text(as_graph(loads_spec(text))), "the lockfile differs between two traces"
    model = build(graph, device="cpu", seed=0)
    _check_parameters(graph, model)
    with torch.no_grad():
        vocab = graph.vocab_size or 2
        ids = torch.randint(0, vocab, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
        whole = model(ids)
        limit = tolerance * max(1.0, float(whole.abs().max()))
        _check_cached(model, ids, whole, limit)
        _check_ragged(model, ids, whole, limit)
        _check_cache_bytes(graph, model)
    for pairs in ("needed", "dense"):
        _check_twin(graph, model, ids, whole, limit, pairs)
    model(ids).float().square().mean().backward()
    for name, param in model.named_parameters():
        assert param.grad is not None, f"{name} has no gradient"
        assert bool(param.grad.isfinite().all()), f"the gradient of {name} is not finite"


def _check_parameters(graph: Graph, model: nn.Module) -> None:
    want = sum(param.elements for param in graph.params().values() if param.trainable)
    built = sum(param.numel() for param in model.parameters())
    assert built == want, f"the graph has {want} parameters, the module {built}"


def _close(got: Tensor, want: Tensor, limit: float, what: str) -> None:
    difference = float((got - want).abs().max())
    assert difference <= limit, f"{what}: logits differ by {difference:.1e}, more than {limit:.1e}"


def _check_cached(model: nn.Module, ids: Tensor, whole: Tensor, limit: float) -> None:
    cache = new_cache(model, batch=BATCH, max_model_len=LENGTH)
    parts = [model(ids[:, :FIRST], Step.at(0, FIRST), cache)]
    parts.append(model(ids[:, FIRST : FIRST + SECOND], Step.at(FIRST, SECOND), cache))
    parts += [model(ids[:, i : i + 1], Step.at(i, 1), cache) for i in range(FIRST + SECOND, LENGTH)]
    _close(torch.cat(parts, 1), whole, limit, "prefill, chunk and single steps")


def _check_ragged(model: nn.Module, ids: Tensor, whole: Tensor, limit: float) -> None:
    cache = new_cache(model, batch=BATCH, max_model_len=LENGTH + FIRST)
    past = torch.zeros(BATCH, dtype=torch.int64)
    for new in (torch.tensor([FIRST, 4]), torch.tensor([2, SECOND]), torch.tensor([1, 1])):
        seq = int(new.max())
        padded = torch.zeros(BATCH, seq, dtype=torch.int64)
        for row in range(BATCH):
            padded[row, : new[row]] = ids[row, past[row] : past[row] + new[row]]
        got = model(padded, Step.ragged(past, new, seq), cache)
        for row in range(BATCH):
            want = whole[row, past[row] : past[row] + new[row]]
            _close(got[row, : new[row]], want, limit, f"ragged row {row} over {int(past[row])} tokens")
        past = past + new


def _check_cache_bytes(graph: Graph, model: nn.Module) -> None:
    cache = new_cache(model, batch=BATCH, max_model_len=LENGTH)
    for name, state in graph.states().items():
        want = graph.state_shape(state, batch=BATCH, max_model_len=LENGTH)
        assert tuple(cache[name].shape) == want, f"{name} is {tuple(cache[name].shape)}, the graph says {want}"


def _check_twin(graph: Graph, model: nn.Module, ids: Tensor, whole: Tensor, limit: float, pairs: Pairs) -> None:
    twin = build(graph, device="cpu", twin=pairs)
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        cache = new_cache(twin, batch=BATCH, max_model_len=LENGTH)
        calls: list[tuple[int, int, Form]] = [(0, FIRST, "many"), (FIRST, SECOND, "many"), (FIRST + SECOND, 1, "few")]
        for past, seq, form in calls:
            with FlopCounterMode(display=False) as counter:
                got = twin(ids[:, past : past + seq], Step.at(past, seq), cache)
            _close(got, whole[:, past : past + seq], limit, f"the twin that counts {pairs} pairs")
            want = forward_flops(graph, batch=BATCH, seq=seq, past=past, form=form, pairs=pairs)
            seen = counter.get_total_flops()
            assert seen == want, f"{pairs} pairs, {seq} tokens over {past}: the graph says {want} FLOPs, torch counts {seen}"


def forward_flops(graph: Graph, *, batch: int, seq: int, past: int, form: Form, pairs: Pairs) -> int:
    """Forward FLOPs of the whole graph, the head on every token."""
    env = {"batch": batch, "seq": seq, "past": past}
    return sum(
        evaluate(node.op.flops([value.type for value in node.inputs], form, pairs), env) for _, node in graph.walk()
    )
