"""A matrix product a group of rows, for experts: one operator, so that compile sees one node and no data-dependent shape."""

# Shape suffixes: R rows sorted by group, E groups, I inner width, D outer width.

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula


def _ranges(ends_E: Tensor) -> list[tuple[int, int, int]]:
    """(group, first row, end row) of the groups that hold rows."""
    begin, found = 0, []
    for group, end in enumerate(ends_E.tolist()):
        if end > begin:
            found.append((group, begin, end))
        begin = end
    return found


def _on_tensor_cores(x: Tensor) -> bool:
    """Whether torch's grouped kernel takes this: bfloat16 on CUDA. Untested for lack of a GPU."""
    return x.is_cuda and x.dtype == torch.bfloat16 and x.shape[0] > 0 and hasattr(functional, "grouped_mm")


@torch.library.custom_op("archc::grouped_linear", mutates_args=())
def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor, transposed: bool) -> Tensor:
    """x (R, D), weight (E, I, D), ends (E,) int64, the row where each group ends -> (R, I); D and I swap when transposed."""
    if _on_tensor_cores(x):
        return functional.grouped_mm(x, weight if transposed else weight.transpose(1, 2), offs=ends.int())
    out = x.new_empty(x.shape[0], weight.shape[2] if transposed else weight.shape[1])
    for group, begin, end in _ranges(ends):
        matrix = weight[group] if transposed else weight[group].t()
        torch.mm(x[begin:end], matrix, out=out[begin:end])
    return out


@grouped_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor, transposed: bool) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2] if transposed else weight.shape[1])


@torch.library.custom_op("archc::grouped_outer", mutates_args=())
def grouped_outer(grad: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """The weight's gradient (E, I, D) from grad (R, I) and x (R, D)."""
    out = grad.new_zeros(ends.shape[0], grad.shape[1], x.shape[1])
    for group, begin, end in _ranges(ends):
        torch.mm(grad[begin:end].t(), x[begin:end], out=out[group])
    return out


@grouped_outer.register_fake
def _(grad: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return grad.new_empty(ends.shape[0], grad.shape[1], x.shape[1])


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, ends, ctx.transposed = inputs
    ctx.save_for_backward(x, weight, ends)


def _backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
    x, weight, ends = ctx.saved_tensors
    grad = grad.contiguous()
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.ops.archc.grouped_linear(grad, weight, ends, not ctx.transposed)
    if ctx.needs_input_grad[1]:
        pair = (x, grad) if ctx.transposed else (grad, x)
        grad_weight = torch.ops.archc.grouped_outer(*pair, ends)
    return grad_x, grad_weight, None, None


grouped_linear.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.archc.grouped_linear)
def _(x_shape, weight_shape, *args, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * x_shape[0] * weight_shape[1] * weight_shape[2]


@register_flop_formula(torch.ops.archc.grouped_outer)
def _(grad_shape, x_shape, *args, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * grad_shape[0] * grad_shape[1] * x_shape[1]
