"""FSDP2 over dp x cp: a group a layer, one for the rest, others for experts that ranks share and for float32 leaves."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from archc.graph.graph import LAYER, Graph
from archc.ir.values import MODEL_DTYPE
from archc.training.options import TrainOptions
from archc.training.parallel.local_weights import raw_weights
from archc.training.parallel.world import World


def needs_fsdp(options: TrainOptions) -> bool:
    """Whether weights are cut over ranks, or computed in another dtype than they are kept in: FSDP2 does both."""
    return options.parallel.dp * options.parallel.cp > 1 or options.dtype != "float32"


def shard_weights(module: nn.Module, graph: Graph, world: World, options: TrainOptions) -> nn.Module:
    """``fully_shard`` for a ``TrainingModel`` or a stage of one; names below ``model`` are the graph's. Gradients are summed.

    A weight whose dtype the graph fixes is computed in that, whatever the policy. A router's choice is cast nowhere.
    """
    model = module.get_submodule("model")
    mesh = world.submesh("dp_cp")
    policy = _policy(options)
    own = MixedPrecisionPolicy(cast_forward_inputs=False)
    for leaf, params in _leaves(model, graph):
        if options.parallel.ep > 1 and any("experts" in param.axes for param in params):
            _shard(leaf, world.expert_submesh("expert_dp"), policy, options)
        elif all(param.dtype != MODEL_DTYPE for param in params) and options.dtype != "float32":
            _shard(leaf, mesh, own, options)
    for name, layer in model.named_modules():
        if LAYER.search(name):
            _shard(layer, mesh, policy, options)
    _shard(module, mesh, policy, options)
    return module


def begin_sharded(module: nn.Module) -> None:
    """What FSDP2 does before the first forward, now: it looks up weights as attributes, which leaves of tp show otherwise."""
    assert isinstance(module, FSDPModule)
    with raw_weights():
        module._get_fsdp_state()._lazy_init()


def end_gathered(module: nn.Module) -> None:
    """Weights that a pass without a backward has left gathered (ZeRO-2) are cut again: states and checkpoints are of pieces."""
    for each in module.modules():
        if isinstance(each, FSDPModule):
            each.reshard()


def _policy(options: TrainOptions) -> MixedPrecisionPolicy:
    if options.dtype == "float32":
        return MixedPrecisionPolicy()
    # Inputs have the policy's dtype already, but for what is float32 on purpose: rotary tables, decays, routers' weights.
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, options.dtype), reduce_dtype=torch.float32, cast_forward_inputs=False
    )


def _shard(module: Any, mesh: Any, policy: MixedPrecisionPolicy, options: TrainOptions) -> None:
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=options.zero == 3)
    assert isinstance(module, FSDPModule)
    # A step's loss is divided by all of its targets, so ranks have parts of a sum and not each a mean.
    module.set_gradient_divide_factor(1.0)
    # A factor alone would become a multiplied sum, which only nccl has.
    module.set_force_sum_reduction_for_comms(True)


def _leaves(model: nn.Module, graph: Graph) -> list[tuple[nn.Module, list[Any]]]:
    """Each module that holds weights itself, with what the graph says of them."""
    params = graph.params()
    found: list[tuple[nn.Module, list[Any]]] = []
    for path, module in model.named_modules():
        names = [
            f"{path}.{name}" if path else name for name in module._parameters if module._parameters[name] is not None
        ]
        known = [params[name] for name in names if name in params]
        if known:
            found.append((module, known))
    return found
