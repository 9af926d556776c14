"""Cross-entropy of a head without its logits: a chunk of tokens at a time, gradients taken at once, nothing computed twice.

The idea is that of fused linear cross-entropy kernels (Liger, arXiv 2410.10989), here over any head that the graph has.
"""

# Shape suffixes: T tokens of a micro-batch (batch x seq), C of them at once, V rows of the vocabulary on this rank.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from archc.planning.training.loss import chunk_tokens

IGNORED = -100
"""The target of a position that has nothing to learn."""

Criterion = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(logits (C, V), targets (C,)) -> summed cross-entropy, and summed squares of the log-partition; float32 scalars."""


def token_losses(logits_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """Both sums over the targets that are not ignored, in float32 or wider."""
    wide = logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()
    loss = functional.cross_entropy(wide, targets_C, ignore_index=IGNORED, reduction="sum")
    return loss, wide.new_zeros(())


def token_losses_with_squares(logits_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """The same, with the squares, which cost another pass over the logits."""
    loss, _ = token_losses(logits_CV, targets_C)
    partition_C = logits_CV.float().logsumexp(-1)
    return loss, (partition_C.square() * (targets_C != IGNORED)).sum()


def head_loss(
    tail: nn.Module,
    streams: Sequence[Tensor],
    targets: Tensor,
    weight: Tensor,
    *,
    chunk: int | None = None,
    z_loss: float = 0.0,
    criterion: Criterion | None = None,
) -> Tensor:
    """``weight`` x the sum of cross-entropies of the targets (batch, seq), a float32 scalar.

    ``tail`` makes logits (batch, seq, V) of streams (batch, seq, …). ``z_loss`` x the squared log-partition has its share in the
    gradients, and none in the value. At most ``chunk`` tokens have logits at once.
    """
    if criterion is None:
        criterion = token_losses_with_squares if z_loss else token_losses
    names, params = zip(*tail.named_parameters(), strict=True) if any(True for _ in tail.parameters()) else ((), ())
    job = _Job(tail, names, len(streams), chunk, z_loss, criterion)
    if not torch.is_grad_enabled():
        return job.value(streams, params, targets.flatten()) * weight
    loss: Tensor = _HeadLoss.apply(job, targets.flatten(), weight, *streams, *params)
    return loss


class _Job:
    """What stays the same from chunk to chunk."""

    def __init__(
        self,
        tail: nn.Module,
        names: Sequence[str],
        num_streams: int,
        chunk: int | None,
        z_loss: float,
        criterion: Criterion,
    ) -> None:
        self.tail, self.names, self.num_streams = tail, names, num_streams
        self.chunk, self.z_loss, self.criterion = chunk, z_loss, criterion

    def chunks(self, streams: Sequence[Tensor], targets_T: Tensor) -> list[tuple[list[Tensor], Tensor]]:
        """Pieces (1, C, …) of the streams with their targets."""
        size = self.chunk or self._tokens_at_once()
        rows = [stream.flatten(0, 1).split(size) for stream in streams]
        return [
            ([piece.unsqueeze(0) for piece in pieces], targets_C)
            for *pieces, targets_C in zip(*rows, targets_T.split(size), strict=True)
        ]

    def _tokens_at_once(self) -> int:
        rows = max((weight.shape[0] for weight in self.tail.parameters()), default=1)
        return chunk_tokens(rows)

    def sums(self, pieces: Sequence[Tensor], params: Sequence[Tensor], targets_C: Tensor) -> tuple[Tensor, Tensor]:
        """The criterion of one chunk."""
        logits = torch.func.functional_call(self.tail, dict(zip(self.names, params, strict=True)), tuple(pieces))[0]
        return self.criterion(logits.squeeze(0), targets_C)

    def value(self, streams: Sequence[Tensor], params: Sequence[Tensor], targets_T: Tensor) -> Tensor:
        """The sum of cross-entropies, without gradients."""
        parts = [self.sums(pieces, params, targets_C)[0] for pieces, targets_C in self.chunks(streams, targets_T)]
        return torch.stack(parts).sum()


class _HeadLoss(torch.autograd.Function):
    """The value, and in the same pass the gradients of streams and weights, which backward only hands on."""

    @staticmethod
    def forward(ctx: Any, job: _Job, targets_T: Tensor, weight: Tensor, *tensors: Tensor) -> Tensor:
        streams, params = tensors[: job.num_streams], tensors[job.num_streams :]
        wanted = list(ctx.needs_input_grad[3:])
        leaves = [
            param.detach().requires_grad_(need) for param, need in zip(params, wanted[job.num_streams :], strict=True)
        ]
        param_grads: list[Tensor | None] = [None] * len(params)
        stream_grads: list[list[Tensor]] = [[] for _ in streams]
        total: Tensor | None = None
        chunks = job.chunks([stream.detach() for stream in streams], targets_T)
        is_only = len(chunks) == 1
        for pieces, targets_C in chunks:
            held = [piece.requires_grad_(need) for piece, need in zip(pieces, wanted, strict=False)]
            value = _add_gradients(job, held, leaves, targets_C, weight, stream_grads, param_grads, is_only=is_only)
            total = value if total is None else total + value
        assert total is not None
        for number, leaf in enumerate(leaves):
            summed = param_grads[number]
            param_grads[number] = None if summed is None else summed.to(leaf.dtype)
            del summed
        ctx.save_for_backward(
            *(
                torch.cat(grads, 1).view(stream.shape) if grads else None
                for grads, stream in zip(stream_grads, streams, strict=True)
            ),
            *param_grads,
        )
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # In place: the gradient of a head is as large as the head, and is wanted once.
        found = [None if gradient is None else gradient.mul_(grad_outputs[0]) for gradient in ctx.saved_tensors]
        return (None, None, None, *found)


def _add_gradients(
    job: _Job,
    pieces: Sequence[Tensor],
    leaves: Sequence[Tensor],
    targets_C: Tensor,
    weight: Tensor,
    stream_grads: list[list[Tensor]],
    param_grads: list[Tensor | None],
    *,
    is_only: bool,
) -> Tensor:
    """The weighted loss of a chunk, its gradients added to those of earlier ones.

    A function, so that nothing of a chunk, a gradient as large as the head least of all, is there while the next one runs.
    """
    with torch.enable_grad():
        loss, squares = job.sums(pieces, leaves, targets_C)
        whole = (loss + job.z_loss * squares if job.z_loss else loss) * weight
        inputs = [tensor for tensor in (*pieces, *leaves) if tensor.requires_grad]
        found = iter(torch.autograd.grad(whole, inputs, allow_unused=True))
    for number, piece in enumerate(pieces):
        if piece.requires_grad:
            gradient = next(found)
            stream_grads[number].append(torch.zeros_like(piece) if gradient is None else gradient)
    seen: set[int] = set()
    for number, leaf in enumerate(leaves):
        if leaf.requires_grad and (gradient := next(found)) is not None:
            # autograd gives two weights that are added one tensor, and what follows works in place.
            gradient = gradient.clone() if gradient.data_ptr() in seen else gradient
            seen.add(gradient.data_ptr())
            known = param_grads[number]
            param_grads[number] = gradient.to(_summed_in(gradient, is_only)) if known is None else known.add_(gradient)
    return (loss * weight).detach()


def _summed_in(gradient: Tensor, is_only: bool) -> torch.dtype:
    """float32 at least where chunks add up: many sums in bfloat16 lose what is small beside what is there already."""
    return gradient.dtype if is_only else torch.promote_types(gradient.dtype, torch.float32)
