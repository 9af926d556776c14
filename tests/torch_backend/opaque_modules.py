"""Torch modules that a user might bring, for the tests of the op ``opaque``."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bilinear(nn.Module):
    """``down(tanh(left x) * (right y)) + shift``; ``shift`` is a buffer that is saved."""

    def __init__(self, *, width: int, sizes: list[int], steep: float = 1.0) -> None:
        super().__init__()
        assert isinstance(sizes, list)
        self.left = nn.Linear(sizes[0], width, bias=False)
        self.right = nn.Linear(sizes[1], width, bias=True)
        self.down = nn.Linear(width, sizes[0], bias=False)
        self.register_buffer("shift", torch.zeros(sizes[0]))
        self.steep = steep

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.down(torch.tanh(self.left(x) * self.steep) * self.right(y)) + self.shift.to(x.dtype)


class Fleeting(nn.Linear):
    """Holds a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.register_buffer("mask", torch.ones(4), persistent=False)


class Twice(nn.Module):
    """Holds one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))
        self.other = self.weight


class Broken(nn.Module):
    """Can't be built."""

    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("needs a licence")


class Sharing(nn.Module):
    """Looks at the token before, which no opaque module may."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.roll(1, 1)


def no_class() -> None:
    """A function."""
