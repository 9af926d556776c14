"""The state of a training run as named tensors: what a checkpoint holds, and what fills a run that goes on."""

from __future__ import annotations

from torch import Tensor, nn

from archc.torch_backend.build import graph_of
from archc.training.module import TrainingModel
from archc.training.optimizers import Optimizer, named_states
from archc.training.parallel.stage import weights_here

MODEL, OPTIMIZER = "model.", "optimizer."


def state_of(module: TrainingModel, optimizer: Optimizer) -> dict[str, Tensor]:
    """Name -> the run's own tensor: weights and persistent buffers as ``model.NAME``, states as ``optimizer.NAME.STATE``.

    NAME is the graph's, so names are the same for any world; a rank gives what it holds, tied weights once. States that no step
    has made yet are made, all zeros, so that they can be filled.
    """
    weights = weights_here(module.model, graph_of(module.model))
    moved = {name: weight for name, weight in weights.items() if isinstance(weight, nn.Parameter)}
    states = named_states(optimizer, moved)
    return {
        **{f"{MODEL}{name}": tensor for name, tensor in weights.items()},
        **{f"{OPTIMIZER}{name}": tensor for name, tensor in states.items()},
    }
