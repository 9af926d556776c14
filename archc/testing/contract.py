"""The contract test of a kind: a spec that places it is built, run in every way, and compared with what the graph says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from archc.estimation.estimate import estimate
from archc.graph.graph import Graph
from archc.graph.lockfile import to_text
from archc.graph.verify import verify
from archc.ir.op import Form, Pairs
from archc.ir.size import evaluate
from archc.spec.load import loads_spec
from archc.torch_backend.build import as_graph, build, new_cache
from archc.torch_backend.step import Step

BATCH, LENGTH, FIRST, SECOND = 2, 23, 11, 7
PAIRS: tuple[Pairs, Pairs] = ("needed", "dense")
GRADIENT_TOLERANCE = 10
"""How many times the tolerance of logits gradients get: they are sums over all tokens."""


CHECKS = (
    "graph: verified, and its lockfile stable",
    "weights: the built ones are the graph's and the estimate's",
    "cached = uncached: prefill, chunk, single steps, over a used cache too",
    "ragged rows = each row alone; only the last token = the last of all",
    "cache: allocated as the graph says",
    "twins: the same outputs, FLOPs = torch's counter, in both forms and pair counts",
    "gradients: finite and the twin's; every weight moves the output",
)
"""What ``check_spec`` checks, a line each."""


@dataclass(frozen=True, eq=False)
class Checked:
    """What was judged: the graph, its model with lively weights, and the ids (batch, seq) it was run on."""

    graph: Graph
    model: nn.Module
    ids: Tensor


def check_spec(text: str, *, tolerance: float = 2e-5) -> Checked:
    """Check that everything read off a spec's graph agrees with the model that is built from it.

    The graph verifies itself and its lockfile is stable; built weights are the graph's and the estimate's, allocated
    caches the graph's; prefill in chunks, single steps, a cache used again and ragged rows give the logits of the whole
    forward within ``tolerance`` of their size; the readable twin agrees, in gradients too; FLOPs of each form and pair
    count are what torch's counter sees in the twin; every weight has a finite gradient and moves the output. Weights
    are drawn large, so that what an op does shows. The model should be tiny.

    Raises:
        AssertionError: one of them does not hold; the message says which.
        SpecError: the spec is wrong.
    """
    graph = as_graph(loads_spec(text))
    verify(graph)
    assert to_text(graph) == to_text(as_graph(loads_spec(text))), "the lockfile differs between two traces"
    model = build(graph, device="cpu", seed=0)
    _check_weights(graph, model)
    _enliven(graph, model)
    vocab = graph.vocab_size or 2
    ids = torch.randint(0, vocab, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(ids)
        limit = tolerance * float(whole.abs().max())
        _close(model(ids, last_only=True), whole[:, -1:], limit, "last_only")
        _check_cached(model, ids, whole, limit)
        _check_ragged(model, ids, whole, limit)
        _check_cache_shapes(graph, model)
    twins: dict[Pairs, nn.Module] = {pairs: _twin(graph, model, pairs) for pairs in PAIRS}
    with torch.no_grad():
        for pairs, twin in twins.items():
            _check_twin(graph, twin, ids, whole, limit, pairs)
    _check_gradients(model, twins["dense"], ids, whole, GRADIENT_TOLERANCE * tolerance)
    return Checked(graph, model, ids)


def _check_weights(graph: Graph, model: nn.Module) -> None:
    want = {name: param.shape for name, param in graph.params().items()}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    built = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert built == want, f"the graph and the module differ in {sorted(want.items() ^ built.items())}"
    trained = sum(param.numel() for param in model.parameters())
    counted = estimate(graph).parameters.total - (0 if graph.mtp is None else estimate(graph.mtp).parameters.total)
    assert trained == counted, f"the module has {trained} parameters, the estimate {counted}"


def _enliven(graph: Graph, model: nn.Module) -> None:
    """Weights far from their initial values: scores that choose, biases and sinks that count. Decays stay as drawn."""
    draw = torch.Generator().manual_seed(1)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, param in graph.params().items():
            noise = torch.randn(param.shape, generator=draw)
            match param.init:
                case "normal" | "conv":
                    tensors[name].copy_(noise * 1.5 * param.shape[-1] ** -0.5)
                case "ones":
                    tensors[name].copy_(1 + 0.3 * noise)
                case "zeros":
                    tensors[name].copy_(0.5 * noise)
                case _:
                    pass


def _close(got: Tensor, want: Tensor, limit: float, what: str) -> None:
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} comes out, not {tuple(want.shape)}"
    difference = float((got - want).abs().max())
    assert difference <= limit, f"{what}: values differ by {difference:.1e}, more than {limit:.1e}"


def _check_cached(model: nn.Module, ids: Tensor, whole: Tensor, limit: float) -> None:
    cache = new_cache(model, batch=BATCH, max_model_len=LENGTH)
    for round_ in ("", " over a used cache"):
        parts = [model(ids[:, :FIRST], Step.at(0, FIRST), cache)]
        parts.append(model(ids[:, FIRST : FIRST + SECOND], Step.at(FIRST, SECOND), cache))
        parts += [model(ids[:, i : i + 1], Step.at(i, 1), cache) for i in range(FIRST + SECOND, LENGTH)]
        _close(torch.cat(parts, 1), whole, limit, f"prefill, chunk and single steps{round_}")


def _check_ragged(model: nn.Module, ids: Tensor, whole: Tensor, limit: float) -> None:
    cache = new_cache(model, batch=BATCH, max_model_len=LENGTH + FIRST)
    past = torch.zeros(BATCH, dtype=torch.int64)
    for lengths in ((FIRST, 4), (2, SECOND), (1, 1), (0, 3)):
        new = torch.tensor(lengths)
        seq = int(new.max())
        padded = torch.zeros(BATCH, seq, dtype=torch.int64)
        for row in range(BATCH):
            padded[row, : new[row]] = ids[row, past[row] : past[row] + new[row]]
        got = model(padded, Step.ragged(past, new, seq), cache)
        for row in range(BATCH):
            if new[row]:
                want = whole[row, past[row] : past[row] + new[row]]
                _close(got[row, : new[row]], want, limit, f"ragged row {row} over {int(past[row])} tokens")
        past = past + new


def _check_cache_shapes(graph: Graph, model: nn.Module) -> None:
    cache = new_cache(model, batch=BATCH, max_model_len=LENGTH)
    for name, state in graph.states().items():
        want = graph.state_shape(state, batch=BATCH, max_model_len=LENGTH)
        assert tuple(cache[name].shape) == want, f"{name} is {tuple(cache[name].shape)}, the graph says {want}"


def _twin(graph: Graph, model: nn.Module, pairs: Pairs) -> nn.Module:
    twin = build(graph, device="cpu", twin=pairs)
    twin.load_state_dict(model.state_dict())
    return twin


def _check_twin(graph: Graph, twin: nn.Module, ids: Tensor, whole: Tensor, limit: float, pairs: Pairs) -> None:
    cache = new_cache(twin, batch=BATCH, max_model_len=LENGTH)
    calls: list[tuple[int, int, Form]] = [(0, FIRST, "many"), (FIRST, SECOND, "many"), (FIRST + SECOND, 1, "few")]
    for past, seq, form in calls:
        with FlopCounterMode(display=False) as counter:
            got = twin(ids[:, past : past + seq], Step.at(past, seq), cache)
        _close(got, whole[:, past : past + seq], limit, f"the twin that counts {pairs} pairs")
        want = forward_flops(graph, batch=BATCH, seq=seq, past=past, form=form, pairs=pairs)
        seen = counter.get_total_flops()
        assert seen == want, (
            f"{pairs} pairs, {seq} tokens over {past}: the graph says {want} FLOPs, torch counts {seen}"
        )


def _check_gradients(model: nn.Module, twin: nn.Module, ids: Tensor, whole: Tensor, tolerance: float) -> None:
    # Of a random direction in the output: that of a mean would be zero behind a norm.
    direction = torch.randn(whole.shape, generator=torch.Generator().manual_seed(2))
    for each in (model, twin):
        (each(ids) * direction).sum().backward()
    judged = dict(twin.named_parameters())
    for name, param in model.named_parameters():
        got, want = param.grad, judged[name].grad
        assert got is None or want is not None, f"{name} has no gradient in the twin"
        assert want is None or got is not None, f"{name} has no gradient, and has one in the twin"
        if got is None or want is None:
            # Weights that only choose, as an indexer's do, have none.
            assert _moves(model, param, ids, whole), f"{name} has no gradient and changes nothing"
            continue
        assert bool(got.isfinite().all()), f"the gradient of {name} is not finite"
        # A weight in float32 that shifts all scores alike has a gradient of rounding errors, as large as others' tolerance.
        _close(got, want, tolerance * max(1.0, float(want.abs().max())), f"the gradient of {name}")
        if not float(got.abs().max()):
            assert _moves(model, param, ids, whole), f"{name} changes nothing"


def _moves(model: nn.Module, param: nn.Parameter, ids: Tensor, whole: Tensor) -> bool:
    """Whether another value of a weight gives other outputs."""
    with torch.no_grad():
        param.neg_().add_(1)
        moved = not torch.equal(model(ids), whole)
        param.sub_(1).neg_()
    return moved


def forward_flops(graph: Graph, *, batch: int, seq: int, past: int, form: Form, pairs: Pairs) -> int:
    """Forward FLOPs of the whole graph, the head on every token."""
    env = {"batch": batch, "seq": seq, "past": past}
    return sum(
        evaluate(node.op.flops([value.type for value in node.inputs], form, pairs), env) for _, node in graph.walk()
    )
