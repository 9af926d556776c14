"""Activations are judged by autograd itself: every storage that its graph still holds after a forward, added up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from archc.estimation.activations import measure_activations
from archc.graph.graph import Graph
from archc.ir.tape import RECOMPUTE, Recompute
from archc.testing.feeding import BATCH, LENGTH, SOURCE_LENGTH, Given, feed
from archc.torch_backend import recompute as home
from archc.torch_backend.build import build, graph_of

DTYPES = ("float32", "bfloat16")


class _Saved:
    """What autograd holds in place of a tensor: gone as soon as the part of its graph is that would have read it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Keeper:
    """Storages that are kept; weights and buffers are left out.

    A tensor saved on the way to something that no output depends on, as the scores that only choose experts, is let go with
    the graph of it, before backward: hence what is counted is what is left at the end.
    """

    def __init__(self, model: nn.Module) -> None:
        self.known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        self.saved: WeakSet[_Saved] = WeakSet()
        self.held: list[Tensor] = []

    def save(self, tensor: Tensor) -> _Saved:
        """What autograd is given to hold."""
        # Detached, since a result that holds the node that made it would keep both alive; a mask is itself, as layers share it.
        saved = _Saved(tensor if tensor.grad_fn is None else tensor.detach())
        self.saved.add(saved)
        return saved

    @property
    def bytes(self) -> int:
        storages = [tensor.untyped_storage() for tensor in (*self.held, *(saved.tensor for saved in self.saved))]
        return sum({each.data_ptr(): each.nbytes() for each in storages if each.data_ptr() not in self.known}.values())


def kept_bytes(model: nn.Module, given: Given, mode: Recompute = "none") -> int:
    """Bytes that stay from a training forward until its backward.

    What autograd saves is seen by its own hooks. A layer that is computed again holds its arguments, and, selectively, what
    ``torch.utils.checkpoint`` stores of its products.
    """
    keeper = _Keeper(model)
    home.recompute(model, mode)
    plain: Any = checkpoint.checkpoint
    storages: list[dict[Any, Any]] = []

    def watched(function: Any, *args: Any, **keywords: Any) -> Any:
        keeper.held += [each for each in tree_leaves(args) if isinstance(each, Tensor)]
        make = keywords.pop("context_fn", None)

        def contexts() -> Any:
            caching, cached = make()
            storages.append(caching.storage)
            return caching, cached

        return plain(function, *args, **keywords, **({} if make is None else {"context_fn": contexts}))

    hooks = torch.autograd.graph.saved_tensors_hooks(keeper.save, lambda saved: saved.tensor)
    with patch.object(home, "checkpoint", watched), hooks:
        outputs = given.run(model)
    home.recompute(model, "none")
    for storage in storages:
        for kept in tree_leaves(list(storage.values())):
            value = getattr(kept, "val", kept)
            if isinstance(value, Tensor):
                keeper.held.append(value)
    found = keeper.bytes
    del outputs
    return found


def check_activations(graph: Graph, length: int = LENGTH, *, one_row: bool = False) -> list[str]:
    """Check that what autograd keeps of a forward is what the graph says, to the byte, or that the ops left out are named.

    Of ``length`` tokens a row, in float32 and bfloat16, with nothing, with all but products, and with all of a layer computed
    again. The names of the ops that can't say theirs come back.

    Raises:
        AssertionError: bytes differ.
    """
    left_out: list[str] = []
    given = feed(graph, length)
    given = _alone(given.row(0)) if one_row else given
    for dtype in DTYPES:
        model = build(graph, device="cpu", dtype=dtype, seed=0)
        fed = _in_dtype(given, dtype)
        for mode in RECOMPUTE:
            said = measure_activations(
                graph_of(model),
                batch_size=1 if one_row else BATCH,
                seq_len=length,
                source_len=SOURCE_LENGTH,
                dtype=dtype,
                recompute=mode,
                device="cpu",
            )
            left_out = [name for _, name in said.left_out]
            if left_out:
                break
            found = kept_bytes(model, fed, mode)
            assert found == said.bytes, (
                f"{dtype}, recompute {mode}: autograd keeps {found} bytes, the graph says {said.bytes}"
            )
    return left_out


def _in_dtype(given: Given, dtype: str) -> Given:
    """Numbers of the model's inputs in its dtype; ids stay."""
    if not given.main.is_floating_point():
        return given
    return replace(given, main=given.main.to(getattr(torch, dtype)))


def _alone(given: Given) -> Given:
    """A row in memory of its own: what autograd keeps of a slice is all that it was cut from."""
    by_token, source, always = (
        {name: tensor.clone() for name, tensor in tensors.items()}
        for tensors in (given.by_token, given.source, given.always)
    )
    return Given(given.graph, given.main.clone(), by_token, source, always)
