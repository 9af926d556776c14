"""Activations that training forgets and computes again in backward: all of a layer's, or all but the results of its products.

A layer's class is replaced by a subclass whose forward goes through ``torch.utils.checkpoint``. That lies inside the module's
hooks, so FSDP2 gathers and frees weights around it; names and state dicts stay; equal layers still share a class, hence a
compiled graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from archc.errors import ArchcError
from archc.graph.graph import LAYER
from archc.ir.tape import RECOMPUTE, Recompute
from archc.spec.near import listed
from archc.torch_backend.build import graph_of
from archc.torch_backend.scopes import ScopeModule, scope_class

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm")
_classes: dict[tuple[type[Any], str], type[Any]] = {}


def recompute(model: nn.Module, mode: Recompute) -> nn.Module:
    """Set what a model's layers compute again in backward, in place; the model comes back.

    ``full`` keeps a layer's inputs only. ``selective`` keeps beside them the outputs of matrix work: products, fused
    attention and archc's own operators (``keeps``). Values and gradients are those of ``none`` to the last bit. Nothing is
    forgotten where a cache is used or no gradient is wanted. A later call replaces an earlier one, before or after
    ``fully_shard``.

    Raises:
        ArchcError: there is no such mode.
    """
    if mode not in RECOMPUTE:
        raise ArchcError(f"recompute: {mode!r} is unknown; known: {listed(RECOMPUTE)}")
    for call in graph_of(model).root.calls():
        if LAYER.match(call.name):
            layer = model.get_submodule(call.name)
            layer.__class__ = _with_mode(type(layer), mode)
    return model


def keeps(target: Any) -> bool:
    """Whether ``selective`` keeps what an operator (``torch.ops.….default``) returns, where a gradient is taken."""
    if target.namespace == "archc":
        return True
    name = target._schema.name.removeprefix("aten::")
    return target.namespace == "aten" and (name in _PRODUCTS or _is_fused_attention(name))


def _is_fused_attention(name: str) -> bool:
    return name.startswith(("_scaled_dot_product", "scaled_dot_product")) and "attention" in name


def _policy(context: Any, target: Any, *args: Any, **keywords: Any) -> CheckpointPolicy:
    # What has no gradient only chooses: an indexer's scores of all keys are far more than is made of them. Operators with a
    # backward of their own always run without one.
    kept = keeps(target) and (target.namespace == "archc" or torch.is_grad_enabled())
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> tuple[Any, Any]:
    forward, backward = create_selective_checkpoint_contexts(_policy)
    for mode in (forward, backward):
        mode.__class__ = _blind(type(mode))
    return forward, backward


@cache
def _blind(mode: type[Any]) -> type[Any]:
    """A mode of torch's that sees nothing of what is never kept.

    It would want the same calls in backward as in forward, and FSDP2 gathers a leaf's weights in other ways there.
    """

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A compiler wants to be told of every call whether to keep it.
        if keeps(func) or get_proxy_mode() is not None:
            return mode.__torch_dispatch__(self, func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    return type(mode.__name__, (mode,), {"__torch_dispatch__": dispatch})


class _Recomputing:
    """Marks the classes that are made here. ``plain`` is the class below, ``mode`` what is computed again.

    ``forward_once`` is the forward of ``plain``: torch.compile follows a method, and not one that is bound by hand.
    """

    plain: type[ScopeModule]
    mode: Recompute

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _revive, (self.plain.__name__, self.plain.code, self.plain.imports, self.mode), self.__dict__


def _revive(name: str, code: str, imports: dict[str, str], mode: Recompute) -> nn.Module:
    cls = _with_mode(scope_class(name, code, imports), mode)
    return object.__new__(cls)


def _with_mode(cls: type[Any], mode: Recompute) -> type[Any]:
    """The class of a layer for another mode; one that a wrapper (FSDP2) put on top stays there."""
    if issubclass(cls, _Recomputing) and "plain" in cls.__dict__:
        return _with_mode(cls.plain, mode)
    if issubclass(cls, ScopeModule) and "code" in cls.__dict__:
        return cls if mode == "none" else _recomputing(cls, mode)
    key = (cls, mode)
    if key not in _classes:
        bases = tuple(_with_mode(base, mode) if issubclass(base, ScopeModule) else base for base in cls.__bases__)
        _classes[key] = cls if bases == cls.__bases__ else type(cls.__name__, bases, dict(cls.__dict__))
    return _classes[key]


def _recomputing(plain: type[ScopeModule], mode: Recompute) -> type[Any]:
    """The subclass of a generated class that computes again, made once."""
    key = (plain, mode)
    if key not in _classes:
        members = {
            "forward": _forward(plain, mode),
            "forward_once": plain.forward,
            "plain": plain,
            "mode": mode,
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
        }
        _classes[key] = type(plain.__name__, (_Recomputing, plain), members)
    return _classes[key]


def _forward(plain: type[ScopeModule], mode: Recompute) -> Callable[..., Any]:
    inner: Callable[..., Any] = plain.forward
    names = list(inspect.signature(inner).parameters)[1:]
    states = names.index("step") + 1 if "step" in names else len(names)
    keywords: dict[str, Any] = {"context_fn": _selective} if mode == "selective" else {}

    def forward(self: Any, *args: Any) -> Any:
        has_cache = any(state is not None for state in args[states:])
        if has_cache or not torch.is_grad_enabled():
            return inner(self, *args)
        return checkpoint(self.forward_once, *args, use_reentrant=False, **keywords)

    return forward
