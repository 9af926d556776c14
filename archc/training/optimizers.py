"""AdamW, Muon and SGD over a model's weights: which weight is moved how is read off the graph.

* Weight decay acts on what is drawn around zero and has more than one dimension: products' weights, stacks of them, kernels of
  convolutions, tables. Norms, biases, sinks and decays (``A_log``, ``dt_bias``) have none, tables have it unless told otherwise.
* ``muon`` moves the weights of products inside layers, each matrix of a stack by itself; AdamW moves all others (arXiv
  2502.16982).
* Weights of one group lie on one mesh: torch's fused kernels take no others together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from archc.graph.graph import LAYER, Graph, join, walk_scopes
from archc.ir.values import Param
from archc.ops.linear import Embedding
from archc.planning.training.weights import is_matrix
from archc.torch_backend.build import graph_of
from archc.training.muon import MOMENTUM_BUFFER, Muon
from archc.training.options import TrainOptions

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Where torch.optim has a fused kernel of AdamW."""

DECAYED = ("normal", "conv")
"""Initialisers of what weight decay may draw to zero: that is where they begin."""

ADAM_STATES = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """One or two of torch's optimizers behind one face. ``names`` are the graph's names of what they move."""

    def __init__(self, parts: list[torch.optim.Optimizer], names: dict[str, nn.Parameter]) -> None:
        self.parts, self.names = parts, names

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All groups; ``lr`` may be set in each."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """Parameter -> its states."""
        return {param: state for part in self.parts for param, state in part.state.items()}

    def step(self) -> None:
        """Move every weight that has a gradient."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def make_optimizer(model: nn.Module, options: TrainOptions) -> Optimizer:
    """The optimizer of a model, of a ``TrainingModel`` or of a stage of one, over the weights that it holds, whole or cut."""
    inner = model.get_submodule("model") if "model" in model._modules else model
    known = dict(_described(graph_of(inner)))
    groups: dict[tuple[bool, bool, object], list[nn.Parameter]] = {}
    names: dict[str, nn.Parameter] = {}
    for name, param in inner.named_parameters():
        described = known[name]
        names[name] = param
        by_muon = options.optimizer == "muon" and is_matrix(described.param, in_layer=described.in_layer)
        mesh = param.device_mesh if isinstance(param, DTensor) else None
        groups.setdefault((by_muon, _is_decayed(described, options), mesh), []).append(param)
    parts: list[torch.optim.Optimizer] = []
    for by_muon in (True, False):
        chosen: list[dict[str, Any]] = [
            {"params": params, "weight_decay": options.weight_decay if is_decayed else 0.0}
            for (is_muon, is_decayed, _), params in groups.items()
            if is_muon == by_muon
        ]
        if chosen:
            parts.append(_part(chosen, options, by_muon=by_muon))
    return Optimizer(parts, names)


def _part(groups: list[dict[str, Any]], options: TrainOptions, *, by_muon: bool) -> torch.optim.Optimizer:
    lr = options.peak_lr
    if by_muon:
        return Muon(groups, lr=lr, momentum=options.momentum)
    if options.optimizer == "sgd":
        # torch 2.13 has a fused kernel of SGD and none of it for DTensors.
        return torch.optim.SGD(groups, lr=lr, momentum=options.momentum, foreach=True)
    fused = groups[0]["params"][0].device.type in FUSED_DEVICES
    return torch.optim.AdamW(groups, lr=lr, betas=options.betas, eps=options.eps, fused=fused, foreach=not fused)


class _Described:
    """What the graph says of a weight."""

    __slots__ = ("in_layer", "is_table", "param")

    def __init__(self, param: Param, *, in_layer: bool, is_table: bool) -> None:
        self.param, self.in_layer, self.is_table = param, in_layer, is_table


def _described(graph: Graph) -> Iterator[tuple[str, _Described]]:
    """Weights by every name that a module may have them under; a tied one by that of the table and by that of the head."""
    tables = {param for _, node in graph.walk() if isinstance(node.op, Embedding) for param in node.params.values()}
    for prefix, node in walk_scopes(graph.root, ""):
        in_layer = any(LAYER.match(part) for part in _scopes(prefix))
        for role, param in node.params.items():
            described = _Described(param, in_layer=in_layer, is_table=param in tables)
            yield join(prefix, param.name), described
            yield join(prefix, join(node.name, role)), described


def _scopes(prefix: str) -> Iterator[str]:
    parts = prefix.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _is_decayed(described: _Described, options: TrainOptions) -> bool:
    param = described.param
    if described.is_table and not options.decay_embeddings:
        return False
    return len(param.shape) > 1 and param.init in DECAYED


def ensure_state(optimizer: Optimizer) -> None:
    """Make the states that a first step would make, as before it: zeros. What is there stays."""
    for part in optimizer.parts:
        for group in part.param_groups:
            for param in group["params"]:
                for name in _state_names_of(part):
                    if name not in part.state[param]:
                        part.state[param][name] = _empty_state(part, param, name)


def _state_names_of(part: torch.optim.Optimizer) -> tuple[str, ...]:
    if isinstance(part, torch.optim.AdamW):
        return ("step", *ADAM_STATES)
    if part.param_groups[0]["momentum"]:
        return (MOMENTUM_BUFFER,)
    return ()


def _empty_state(part: torch.optim.Optimizer, param: Tensor, name: str) -> Tensor:
    if name != "step":
        return torch.zeros_like(param, memory_format=torch.preserve_format)
    # Where torch.optim.AdamW keeps its count: beside the weight if the kernel is fused, else on the host.
    device = param.device if part.param_groups[0]["fused"] else torch.device("cpu")
    return torch.zeros((), dtype=torch.float32, device=device)


def state_names(optimizer: Optimizer) -> dict[str, tuple[str, ...]]:
    """Weight's name -> names of the tensors that are kept for it."""
    kept = {
        id(param): _state_names_of(part)
        for part in optimizer.parts
        for group in part.param_groups
        for param in group["params"]
    }
    return {name: kept[id(param)] for name, param in optimizer.names.items()}


def named_states(optimizer: Optimizer, names: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """``name.exp_avg`` and the like -> the state itself, not a copy. ``names``: weights by name, by default the graph's names.

    States that no step has made yet are made (``ensure_state``).
    """
    ensure_state(optimizer)
    state = optimizer.state
    given = cast("Mapping[str, Tensor]", optimizer.names) if names is None else names
    return {f"{name}.{key}": value for name, param in given.items() for key, value in state.get(param, {}).items()}
