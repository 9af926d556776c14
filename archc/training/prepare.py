"""A spec's model as this rank trains it: cut, wrapped, allocated, and initialised as one process would."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archc.errors import Problem, SpecError
from archc.graph.graph import LAYER, Graph
from archc.planning.sharding import shard
from archc.planning.trainable import training_limits
from archc.torch_backend.build import build
from archc.torch_backend.recompute import recompute
from archc.torch_backend.weights import materialise
from archc.training import routers
from archc.training.engine import Cut, Engine, PlainEngine
from archc.training.module import TrainingModel
from archc.training.options import TrainOptions
from archc.training.parallel import context, experts, tensor
from archc.training.parallel.fsdp import begin_sharded, needs_fsdp, shard_weights
from archc.training.parallel.initialise import initialise
from archc.training.parallel.local_weights import raw_weights
from archc.training.parallel.pipeline import PipelineEngine, StageModel, second_copies
from archc.training.parallel.stage import take_stage
from archc.training.parallel.world import World


@dataclass(eq=False)
class Prepared:
    """``module.model`` holds this rank's weights under the graph's names; ``engine`` runs steps."""

    graph: Graph
    module: TrainingModel
    engine: Engine

    @property
    def elsewhere(self) -> list[Tensor]:
        """Weights that an earlier stage of a pipeline holds and counts too (a tied table)."""
        return second_copies(self.module)


def prepare(graph: Graph, options: TrainOptions, world: World, *, initialised: bool = True) -> Prepared:
    """A graph's model on this rank, weights drawn from ``options.seed`` unless they are to be loaded.

    Raises:
        SpecError: the model can't be cut so, or can't be trained so; every reason is listed.
    """
    refuse_what_cannot_be(graph, options)
    model: Any = build(graph, device="meta")
    routers.prepare(model, options, world)
    rank = tensor.cut(model, graph, world)
    experts.share(model, graph, world)
    context.cut(model, graph, world)
    cut: Cut | None = partial(context.cut_batch, world=world) if options.parallel.cp > 1 else None
    recompute(model, options.recompute)
    loss: dict[str, Any] = {
        "loss_chunk": options.loss_chunk,
        "z_loss": options.z_loss,
        "criterion": tensor.vocab_loss(rank, world),
    }
    if options.parallel.pp > 1:
        stage = take_stage(model, graph if rank is None else rank.graph, world.index("pp"), options.parallel.pp)
        module = StageModel(model, stage, **loss)
        engine: Engine = PipelineEngine(module, options, world, cut)
    else:
        module = TrainingModel(model, **loss)
        engine = PlainEngine(module, world.device, cut)
    if options.compile:
        compile_layers(model, options)
    if needs_fsdp(options):
        shard_weights(module, graph, world, options)
    allocate(module, world.device)
    if rank is not None and needs_fsdp(options):
        begin_sharded(module)
    if initialised:
        initialise(model, graph, options.seed)
    return Prepared(graph, module, engine)


def refuse_what_cannot_be(graph: Graph, options: TrainOptions) -> None:
    """Every reason against a plan.

    Raises:
        SpecError: there are some.
    """
    problems = list(shard(graph, options.parallel, vocab_multiple=1).problems)
    problems += [reason for reason in training_limits(graph, options.parallel) if reason not in problems]
    if problems:
        raise SpecError([Problem(message=message, code="training") for message in problems])


def compile_layers(model: nn.Module, options: TrainOptions) -> None:
    """``torch.compile`` of each layer by itself, in place."""
    for name, layer in model.named_modules():
        if not LAYER.search(name):
            continue
        if options.parallel.tp > 1 and options.recompute == "full":
            # Inside of what is computed again: around it torch 2.13 takes a DTensor's mesh for a tensor that backward wants.
            inner: Any = layer
            inner.forward_once = torch.compile(inner.forward_once)
        else:
            layer.compile()


def allocate(module: nn.Module, device: torch.device) -> None:
    """Storage for every weight on the meta device; tied weights stay tied, also those that FSDP2 has cut."""
    # What only collects gradients has no weight's meaning, and loses its flag on the way.
    collecting = [
        (home, name)
        for home in module.modules()
        for name, buffer in home._buffers.items()
        if buffer is not None and buffer.requires_grad
    ]
    _allocate(module, device)
    for home, name in collecting:
        buffer = home._buffers[name]
        assert buffer is not None
        home._buffers[name] = torch.zeros_like(buffer, requires_grad=True)


def _allocate(module: nn.Module, device: torch.device) -> None:
    if not any(hasattr(weight, "device_mesh") for weight in module.parameters()):
        materialise(module, device)
        return
    ties: dict[int, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        ties.setdefault(id(weight), []).append(name)
    with raw_weights():
        module.to_empty(device=device)
        for first, *others in ties.values():
            weight = module.get_parameter(first)
            for name in others:
                home, _, last = name.rpartition(".")
                module.get_submodule(home)._parameters[last] = weight
