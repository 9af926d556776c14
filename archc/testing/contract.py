"""The contract test of a kind: a spec that places it is built, run in every way, and compared with what the graph says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archc.estimation.activations import measure_activations
from archc.estimation.estimate import estimate
from archc.expansion import as_graph
from archc.graph.graph import Graph, join, walk_scopes
from archc.graph.lockfile import to_text
from archc.graph.verify import verify
from archc.ir.op import Pairs
from archc.spec.load import loads_spec
from archc.testing.activations import check_activations
from archc.testing.calls import Judge, close, forward_flops
from archc.testing.feeding import BATCH, FIRST, LENGTH, SECOND, SOURCE_LENGTH, Given, by_token, feed
from archc.torch_backend.build import build, new_cache

__all__ = ["BATCH", "CHECKS", "FIRST", "LENGTH", "SECOND", "Checked", "check_spec", "checks_of", "forward_flops"]

PAIRS: tuple[Pairs, Pairs] = ("needed", "dense")
GRADIENT_TOLERANCE = 10
"""How many times the tolerance of logits gradients get: they are sums over all tokens."""

_GRAPH = (
    "graph: verified, and its lockfile stable",
    "weights: the built ones are the graph's and the estimate's",
)
_TWINS = (
    "twins: the same outputs, FLOPs = torch's counter, in both forms and pair counts",
    "gradients: finite and the twin's; every weight moves the output",
)
_ACTIVATIONS = "activations: what autograd keeps for backward is what the ops say, to the byte"
CHECKS = (
    *_GRAPH,
    "cached = uncached: prefill, chunk, single steps, over a used cache too",
    "ragged rows = each row alone; only the last token = the last of all",
    "cache: allocated as the graph says",
    *_TWINS,
    _ACTIVATIONS,
)
"""What ``check_spec`` checks, a line each; ``checks_of`` has those of stacks that are not causal."""


def checks_of(graph: Graph) -> tuple[str, ...]:
    """What ``check_spec`` checks of a graph, a line each."""
    calls = CHECKS[len(_GRAPH) : -len(_TWINS) - 1]
    if graph.mask == "bidirectional":
        calls = ("padded left or right = each row alone; no mask = a mask of ones",)
    elif graph.reads_encoder:
        calls = (*calls, "padded sources = each row alone, whole and cached")
    left_out = measure_activations(graph, batch_size=BATCH, seq_len=LENGTH, source_len=SOURCE_LENGTH).left_out
    silent = ", ".join(sorted({name for _, name in left_out}))
    last = f"activations: not checked, since {silent} can't say what backward keeps" if silent else _ACTIVATIONS
    return (*_GRAPH, *calls, *_TWINS, last)


@dataclass(frozen=True, eq=False)
class Checked:
    """What was judged: the graph, its model with lively weights, and what it was run on; ``ids`` are its first input."""

    graph: Graph
    model: nn.Module
    given: Given

    @property
    def ids(self) -> Tensor:
        """What the model reads, (batch, seq) where that is ids."""
        return self.given.main


def check_spec(text: str, *, tolerance: float = 2e-5) -> Checked:
    """Check that everything read off a spec's graph agrees with the model that is built from it.

    The graph verifies itself and its lockfile is stable; built weights are the graph's and the estimate's, allocated
    caches the graph's; prefill in chunks, single steps, a cache used again and ragged rows give the logits of the whole
    forward within ``tolerance`` of their size, and so do rows padded on either side where a stack is bidirectional, or an
    encoder's where a decoder reads it; the readable twin agrees, in gradients too; FLOPs of each form and pair
    count are what torch's counter sees in the twin; every weight has a finite gradient and moves the output; what autograd
    keeps for backward is what the ops say, where all of them do. Weights are drawn large, so that what an op does shows.
    The model should be tiny.

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
    given = feed(graph)
    twins: dict[Pairs, nn.Module] = {pairs: _twin(graph, model, pairs) for pairs in PAIRS}
    with torch.no_grad():
        judge = Judge(graph, given, given.run(model), tolerance)
        if graph.mask == "bidirectional":
            if not any(node.op.counts_padding for _, node in graph.walk()):
                judge.check_padded(model)
        else:
            judge.check_last_only(model)
            judge.check_cached(model)
            judge.check_ragged(model)
            judge.check_padded_source(model)
            _check_cache_shapes(graph, model)
        for pairs, twin in twins.items():
            judge.check_twin(twin, pairs)
    _check_gradients(model, twins["dense"], given.ragged(), GRADIENT_TOLERANCE * tolerance)
    check_activations(graph)
    return Checked(graph, model, given)


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


def _check_cache_shapes(graph: Graph, model: nn.Module) -> None:
    cache = new_cache(model, batch=BATCH, max_model_len=LENGTH, source_len=SOURCE_LENGTH)
    for name, state in graph.states().items():
        want = graph.state_shape(state, batch=BATCH, max_model_len=LENGTH, source_len=SOURCE_LENGTH)
        assert tuple(cache[name].shape) == want, f"{name} is {tuple(cache[name].shape)}, the graph says {want}"


def _twin(graph: Graph, model: nn.Module, pairs: Pairs) -> nn.Module:
    twin = build(graph, device="cpu", twin=pairs)
    twin.load_state_dict(model.state_dict())
    return twin


def _check_gradients(model: nn.Module, twin: nn.Module, given: Given, tolerance: float) -> None:
    with torch.no_grad():
        before = given.run(model)
    # Of a random direction in the output: that of a mean would be zero behind a norm.
    draw = torch.Generator().manual_seed(2)
    directions = [torch.randn(each.shape, generator=draw) for each in before]
    mask = given.always.get("attention_mask")
    if mask is not None:
        # What stands for padding is nobody's.
        kept = zip(directions, by_token(given.graph), strict=True)
        directions = [each * mask.unsqueeze(-1) if has_tokens else each for each, has_tokens in kept]
    for each in (model, twin):
        outputs = zip(given.run(each), directions, strict=True)
        torch.stack([(output * direction).sum() for output, direction in outputs]).sum().backward()
    judged = dict(twin.named_parameters())
    idle = set(_idle(given.graph))
    for name, param in model.named_parameters():
        got, want = param.grad, judged[name].grad
        assert got is None or want is not None, f"{name} has no gradient in the twin"
        assert want is None or got is not None, f"{name} has no gradient, and has one in the twin"
        if name in idle:
            assert got is None, f"{name} is said to be idle, and has a gradient"
            assert not _moves(model, param, given, before), f"{name} is said to be idle, and changes the output"
            continue
        if got is None or want is None:
            # Weights that only choose, as an indexer's do, have none.
            assert _moves(model, param, given, before), f"{name} has no gradient and changes nothing"
            continue
        assert bool(got.isfinite().all()), f"the gradient of {name} is not finite"
        # A weight in float32 that shifts all scores alike has a gradient of rounding errors, as large as others' tolerance.
        close(got, want, tolerance * max(1.0, float(want.abs().max())), f"the gradient of {name}")
        if not float(got.abs().max()):
            assert _moves(model, param, given, before), f"{name} changes nothing"


def _idle(graph: Graph) -> Iterator[str]:
    """Weights that an op says it keeps for nothing."""
    for scope, node in walk_scopes(graph.root, ""):
        for role in node.op.idle_roles([value.type for value in node.inputs]):
            yield join(scope, node.params[role].name)


def _moves(model: nn.Module, param: nn.Parameter, given: Given, before: tuple[Tensor, ...]) -> bool:
    """Whether another value of a weight gives other outputs."""
    with torch.no_grad():
        param.neg_().add_(1)
        moved = not all(torch.equal(one, other) for one, other in zip(given.run(model), before, strict=True))
        param.sub_(1).neg_()
    return moved
