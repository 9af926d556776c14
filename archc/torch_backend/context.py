"""What a lowering may return, and what it is given: the contract of the entry-point group ``archc.torch``.

A lowering is a function ``(node, context)``. An op with a name, weights or states returns an ``nn.Module`` whose forward
takes the op's inputs, then, if it has states, ``step`` and one tensor or None a state; it returns a tensor or a tuple. A
nameless op returns a ``Function``. Everything a lowering needs is on the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from archc.ir.op import Pairs
from archc.ir.values import MODEL_DTYPE, Param


@dataclass(frozen=True)
class Function:
    """A nameless op: ``target(*inputs, **keywords)``. The target is a module-level function, so that fx can name it."""

    target: Callable[..., Any]
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """Where and how a model is built. ``twin`` asks for the readable twins, which count ``needed`` or ``dense`` pairs."""

    device: torch.device
    dtype: torch.dtype
    twin: Pairs | None = None

    def tensor(self, param: Param) -> torch.Tensor:
        """Storage for a weight, not initialised."""
        dtype = self.dtype if param.dtype == MODEL_DTYPE else torch_dtype(param.dtype)
        return torch.empty(param.shape, dtype=dtype, device=self.device)

    def parameter(self, param: Param) -> nn.Parameter:
        """A weight that is trained."""
        return nn.Parameter(self.tensor(param))

    def register(self, module: nn.Module, param: Param, name: str) -> None:
        """Hold a weight in a module: a parameter, or a persistent buffer when it is not trained."""
        if param.trainable:
            module.register_parameter(name, self.parameter(param))
        else:
            module.register_buffer(name, self.tensor(param))

    def linear(self, weight: Param, bias: Param | None = None) -> nn.Linear:
        """A real ``nn.Linear`` without the cost of its own initialisation."""
        module = nn.Linear.__new__(nn.Linear)
        nn.Module.__init__(module)
        module.out_features, module.in_features = weight.shape
        module.weight = self.parameter(weight)
        module.register_parameter("bias", None if bias is None else self.parameter(bias))
        return module


def torch_dtype(name: str) -> torch.dtype:
    """A dtype by torch's name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), f"{name} is no dtype of torch"
    return dtype
