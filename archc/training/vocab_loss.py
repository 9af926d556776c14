"""Cross-entropy of logits that ranks of tensor parallelism have cut over the vocabulary (arXiv 1909.08053, section 3)."""

# Shape suffixes: C tokens, V rows of the vocabulary on this rank.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from archc.training.loss import IGNORED
from archc.training.parallel.exchanges import all_reduce


@dataclass(frozen=True, slots=True)
class VocabLoss:
    """A ``Criterion`` over logits of the rows from ``first`` on, ``rows`` of them. Ranks exchange three numbers a token."""

    first: int
    rows: int
    group: str

    def __call__(self, logits_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        """(logits (C, V), targets (C,)) -> summed cross-entropy, and summed squares of the log-partition; on all ranks."""
        found: Any = _VocabLoss.apply(logits_CV, targets_C, self.first, self.group)  # pyright: ignore[reportUnknownMemberType]
        return found


class _VocabLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_CV: Tensor, targets_C: Tensor, first: int, group: str) -> tuple[Tensor, Tensor]:
        wide_CV = logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()
        most_C = all_reduce(wide_CV.amax(-1), group, "max")
        shifted_CV = wide_CV - most_C.unsqueeze(-1)
        own_C = targets_C - first
        is_own_C = (own_C >= 0) & (own_C < wide_CV.shape[-1])
        own_C = own_C.masked_fill(~is_own_C, 0)
        target_C = shifted_CV.gather(-1, own_C.unsqueeze(-1)).squeeze(-1).masked_fill(~is_own_C, 0.0)
        powers_CV = shifted_CV.exp_()
        sums_C, target_C = all_reduce(torch.stack((powers_CV.sum(-1), target_C)), group)
        is_learned_C = targets_C != IGNORED
        losses_C = (sums_C.log() - target_C).masked_fill(~is_learned_C, 0.0)
        partition_C = (sums_C.log() + most_C).masked_fill(~is_learned_C, 0.0)
        shares_CV = powers_CV.div_(sums_C.unsqueeze(-1))
        ctx.save_for_backward(shares_CV, own_C, is_own_C & is_learned_C, is_learned_C, partition_C)
        ctx.dtype = logits_CV.dtype
        return losses_C.sum(), partition_C.square().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss_grad, squares_grad = grad_outputs
        shares_CV, own_C, is_own_C, is_learned_C, partition_C = ctx.saved_tensors
        factor_C = (loss_grad + 2 * squares_grad * partition_C).masked_fill(~is_learned_C, 0.0)
        grad_CV = shares_CV * factor_C.unsqueeze(-1)
        grad_CV.scatter_add_(-1, own_C.unsqueeze(-1), torch.where(is_own_C, -loss_grad, 0.0).unsqueeze(-1))
        return grad_CV.to(ctx.dtype), None, None, None
