"""What ranks of tensor parallelism exchange: functions of pairs that undo each other in backward (``archc.planning.rank_ops``).

A group goes by its name, so that generated code can say it and torch.compile follows it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ops: Any = torch.ops._c10d_functional  # pyright: ignore[reportUnknownMemberType]


def all_reduce(x: Tensor, group: str, how: str = "sum") -> Tensor:
    """The sum, or another reduction, over the ranks of a group, in a new tensor."""
    return _ops.wait_tensor(_ops.all_reduce(x.contiguous(), how, group))


def _all_gather(x: Tensor, dim: int, ways: int, group: str) -> Tensor:
    """The ranks' pieces along ``dim`` side by side."""
    rows = _ops.wait_tensor(_ops.all_gather_into_tensor(x.movedim(dim, 0).contiguous(), ways, group))
    return rows.movedim(0, dim)


def _own(x: Tensor, dim: int, ways: int, index: int) -> Tensor:
    return x.chunk(ways, dim)[index].contiguous()


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return all_reduce(grad_outputs[0], ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0], None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ways: int) -> Tensor:
        ctx.ways = ways
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0] / ctx.ways, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, ways: int, index: int, group: str) -> Tensor:
        ctx.place = dim, ways, index
        return _all_gather(x, dim, ways, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _own(grad_outputs[0], *ctx.place), None, None, None, None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, ways: int, index: int, group: str) -> Tensor:
        ctx.place = dim, ways, group
        return _own(x, dim, ways, index)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _all_gather(grad_outputs[0], *ctx.place), None, None, None, None


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, is_first: bool) -> Tensor:
        return x.view_as(x) if is_first else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0], None


def enter_pieces(x: Tensor, *, group: str) -> Tensor:
    """x as it is; backward sums the ranks' gradients."""
    return _apply(_Enter, x, group)


def sum_parts(x: Tensor, *, group: str) -> Tensor:
    """The sum of the ranks' parts; backward hands the gradient, which every rank has, on."""
    return _apply(_Sum, x, group)


def share_gradient(x: Tensor, *, ways: int) -> Tensor:
    """x as it is; backward each rank takes one of ``ways`` equal parts of the gradient."""
    return _apply(_Share, x, ways)


def gather_pieces(x: Tensor, *, dim: int, ways: int, index: int, group: str) -> Tensor:
    """The ranks' equal pieces side by side; backward each takes the gradient of its own."""
    return _apply(_Gather, x, dim, ways, index, group)


def take_piece(x: Tensor, *, dim: int, ways: int, index: int, group: str) -> Tensor:
    """This rank's piece of what every rank has; backward gathers the pieces' gradients."""
    return _apply(_Take, x, dim, ways, index, group)


def once(x: Tensor, *, is_first: bool) -> Tensor:
    """x on the first rank and zeros on others, to be added before a sum over ranks; its gradient is the same on all of them."""
    return _apply(_Once, x, is_first)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    found: Any = function.apply(*args)  # pyright: ignore[reportUnknownMemberType]
    return found
