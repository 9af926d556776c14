"""Experts that are used evenly: loads that are counted, a bias that follows them, and losses of a router's own.

A router's class is replaced by a subclass that counts the tokens of each expert and adds losses. Counts and values of losses are
gradients of a buffer: so they come about once a backward pass, whatever is computed again, add up over micro-batches as
gradients do, and need nothing that torch.compile can't follow. Losses are attached to the weights that a router gives, whose
values and gradients stay as they are.

Over the sequences of a whole step a router's losses are:

* ``balance_loss``, over each sequence (DeepSeek-V3, arXiv 2412.19437, equations 17-20): the mean over sequences of
  sum_i f_i P_i, with f_i = E / (k T) x the tokens of which expert i is among the k best by score, correction bias and groups left
  out as there, and P_i the mean of normalised scores. f has no gradient, so ranks of cp add up their counts and then have parts
  of one sum. Any ranks and micro-batches give what one process gives.
* ``balance_loss`` over a batch (Switch Transformer, arXiv 2101.03961, equations 4-6): the same over all sequences of a pass on
  one copy together, the mean over passes weighted by sequences. A product of two means is no sum over passes, so micro-batches
  and copies change it, as in Megatron-Core.
* ``router_z_loss`` (ST-MoE, arXiv 2202.08906, equation 5): the mean over tokens of the squared log-sum-exp of the logits.

Each is summed over routers. Padding counts as tokens do: a router is not told of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from typing import cast as typed

import torch
import torch.distributed as dist
from torch import Tensor, nn

from archc.errors import ArchcError
from archc.torch_backend.leaves.moe import Router
from archc.training.options import TrainOptions
from archc.training.parallel.world import World

_classes: dict[type[Router], type[Any]] = {}


class _Counted(torch.autograd.Function):
    """Passes ``weights`` on; ``loads`` (E,) gets the number of times that ``indices`` has each expert as its gradient.

    Nothing is kept but the indices, which the choice keeps too.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, loads: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.num_experts = loads.shape[0]
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (indices,) = ctx.saved_tensors
        return grads[0], counted(indices.flatten(), ctx.num_experts), None


class _WithLoss(torch.autograd.Function):
    """Passes ``weights`` on and gives ``loss``, a scalar that is added to the model's, a gradient of one."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, loss: Tensor) -> Tensor:
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0].new_ones(())


def counted(indices: Tensor, num_experts: int) -> Tensor:
    """indices (…, n) -> how often each expert stands in the last dimension, (…, E) float32."""
    zeros = torch.zeros(*indices.shape[:-1], num_experts, dtype=torch.float32, device=indices.device)
    return zeros.scatter_add(-1, indices, torch.ones_like(indices, dtype=torch.float32))


def balance_loss(scores: Tensor, loads: Tensor, tokens: int) -> Tensor:
    """sum_i f_i P_i, a loss a row: scores (rows, T, E) of tokens, loads (rows, E) of experts, float32. Even ones give 1.

    ``tokens``: how many loads speak of. Where those are more than T, of ranks that share them, the ranks' losses add up to it.
    """
    shares = (scores / scores.sum(-1, keepdim=True)).sum(1) / tokens
    return (loads / loads.sum(-1, keepdim=True) * scores.shape[-1] * shares).sum(-1)


def z_loss(logits: Tensor) -> Tensor:
    """The sum over tokens of the squared log-sum-exp: logits (…, E)."""
    return logits.logsumexp(-1).square().sum()


class _Training(Router):
    """A router that counts and has losses; ``plain`` is the class that it was."""

    plain: type[Router]
    loads: Tensor
    losses: Tensor
    balance_rate: float
    is_over_batch: bool
    z_rate: float
    step_sequences: int
    cp: int
    cp_group: dist.ProcessGroup | None
    last: tuple[Tensor, Tensor] | None

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(x)
        indices, weights = self.choose(logits, *rest)
        if not (self.training and torch.is_grad_enabled()):
            return indices, weights
        weights = typed(Tensor, _Counted.apply(weights, self.loads, indices))
        balanced = self.balance_rate > 0 and self.learns_choice
        if balanced or self.z_rate:
            weights = typed(Tensor, _WithLoss.apply(weights, self._loss(logits, indices.shape[-1], balanced)))
        return indices, weights

    def _loss(self, logits: Tensor, top_k: int, balanced: bool) -> Tensor:
        """What this pass adds to the loss of the step. The gradient of ``losses`` is the values before their factors."""
        rows, tokens = logits.shape[0], logits.shape[1] * self.cp
        found = logits.new_zeros(())
        if balanced:
            scores = self.scores(logits)
            if self.is_over_batch:
                scores = scores.flatten(0, 1).unsqueeze(0)
            best = scores.detach().topk(top_k, -1, sorted=False)[1]
            loads = counted(best.flatten(1), logits.shape[-1])
            if self.cp_group is not None:
                dist.all_reduce(loads, group=self.cp_group)
            together = rows if self.is_over_batch else 1
            value = balance_loss(scores, loads, tokens * together).sum() * (together / self.step_sequences)
            found = found + self.balance_rate * value + self.losses[0] * value.detach()
        if self.z_rate:
            value = z_loss(logits) / (self.step_sequences * tokens)
            found = found + self.z_rate * value + self.losses[1] * value.detach()
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # Buffers that move, or leave the meta device, come back without.
        found = super()._apply(fn, recurse)
        self.loads.requires_grad_()
        self.losses.requires_grad_()
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _revive, (self.plain,), self.__dict__


def _revive(plain: type[Router]) -> Router:
    return object.__new__(_training_class(plain))


def _training_class(plain: type[Router]) -> type[Any]:
    if plain not in _classes:
        members = {"plain": plain, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
        _classes[plain] = type(plain.__name__, (_Training, plain), members)
    return _classes[plain]


def prepare(model: nn.Module, options: TrainOptions, world: World | None = None) -> nn.Module:
    """Let a model's routers count and add the losses that ``options`` ask for, in place, before it is cut; it comes back.

    Raises:
        ArchcError: a loss of routers is asked for and the model has none.
    """
    found = [module for module in model.modules() if isinstance(module, Router) and not isinstance(module, _Training)]
    asked = [name for name in ("balance_loss", "router_z_loss") if getattr(options, name)]
    if asked and not found:
        raise ArchcError(f"{' and '.join(asked)}: the model has no router that it could act on; leave it out")
    cp = options.parallel.cp
    for module in found:
        num_experts, device = module.weight.shape[0], module.weight.device
        module.register_buffer("loads", torch.zeros(num_experts, device=device, requires_grad=True), persistent=False)
        module.register_buffer("losses", torch.zeros(2, device=device, requires_grad=True), persistent=False)
        leaf: Any = module
        leaf.balance_rate, leaf.is_over_batch = options.balance_loss, options.balance_over == "batch"
        leaf.z_rate, leaf.step_sequences = options.router_z_loss, options.batch_size
        leaf.cp, leaf.cp_group = cp, world.group("cp") if world is not None and cp > 1 else None
        leaf.last = None
        leaf.__class__ = _training_class(type(module))
    return model


def _routers(model: nn.Module) -> Iterator[_Training]:
    return (module for module in model.modules() if isinstance(module, _Training))


def forget(model: nn.Module) -> None:
    """Drop what was counted since the last step, as when a step is not taken."""
    for router in _routers(model):
        router.loads.grad = router.losses.grad = None


@torch.no_grad()
def update_biases(model: nn.Module, options: TrainOptions, world: World) -> None:
    """After an optimizer step: each correction bias moves by ``router_bias_rate`` towards even loads (arXiv 2408.15664).

    b_i += rate x sign(mean load - load_i), with the loads of the whole step, all copies and micro-batches together. What was
    counted is kept for ``router_metrics`` and begins anew.
    """
    routers = list(_routers(model))
    if not routers:
        return
    tallies = [buffer for router in routers for buffer in (router.loads, router.losses)]
    flat = torch.cat([torch.zeros_like(each) if each.grad is None else each.grad for each in tallies])
    sums = world.all_sum(flat, "dp_cp").split([each.shape[0] for each in tallies])
    for router, loads, losses in zip(routers, sums[::2], sums[1::2], strict=True):
        router.last = loads, losses
        bias = getattr(router, "e_score_correction_bias", None)
        if bias is not None and options.router_bias_rate:
            bias.add_(torch.sign(loads.mean() - loads), alpha=options.router_bias_rate)
    forget(model)


def router_metrics(model: nn.Module, world: World) -> dict[str, float]:
    """How even the last step's loads were, over all routers; empty where there are none.

    ``router_max_violation``: the busiest expert's load over the mean, less 1 (MaxVio, arXiv 2408.15664), the mean over routers;
    0 is even. ``router_entropy``: of the loads, 1 is even and 0 one expert for all, likewise. ``router_balance_loss`` and
    ``router_z_loss``: before their factors, summed over routers, where they are asked for. Waits for the device.
    """
    routers = [router for router in _routers(model) if router.last is not None]
    numbers = torch.zeros(5, dtype=torch.float32, device=world.device)
    for router in routers:
        assert router.last is not None
        loads, losses = router.last
        parts = loads / loads.sum().clamp(min=1)
        entropy = -torch.xlogy(parts, parts).sum() / max(math.log(parts.shape[0]), 1e-9)
        violation = parts.max() * parts.shape[0] - 1
        numbers += torch.stack([violation, entropy, torch.ones_like(entropy), *losses])
    violation, entropy, count, balance, z = world.all_sum(numbers, "pp").tolist()
    if not count:
        return {}
    found = {"router_max_violation": violation / count, "router_entropy": entropy / count}
    if any(router.balance_rate for router in routers):
        found["router_balance_loss"] = balance
    if any(router.z_rate for router in routers):
        found["router_z_loss"] = z
    return found
