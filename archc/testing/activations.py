"""Activations are judged by autograd itself: every storage that it keeps is caught on its way, and added up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from archc.estimation.activations import RECOMPUTE, Recompute, measure_activations
from archc.graph.graph import Graph
from archc.testing.feeding import BATCH, LENGTH, SOURCE_LENGTH, Given, feed
from archc.torch_backend import recompute as home
from archc.torch_backend.build import build, graph_of

DTYPES = ("float32", "bfloat16")


class _Keeper:
    """Storages by address, held so that no address is used twice; weights and buffers are left out."""

    def __init__(self, model: nn.Module) -> None:
        self.known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        self.kept: dict[int, torch.UntypedStorage] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        """Note a tensor's storage, and hand the tensor on."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.kept.setdefault(storage.data_ptr(), storage)
        return tensor

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.kept.values())


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
        for tensor in tree_leaves(args):
            if isinstance(tensor, Tensor):
                keeper.keep(tensor)
        make = keywords.pop("context_fn", None)

        def contexts() -> Any:
            caching, cached = make()
            storages.append(caching.storage)
            return caching, cached

        return plain(function, *args, **keywords, **({} if make is None else {"context_fn": contexts}))

    hooks = torch.autograd.graph.saved_tensors_hooks(keeper.keep, lambda tensor: tensor)
    with patch.object(home, "checkpoint", watched), hooks:
        outputs = given.run(model)
    home.recompute(model, "none")
    for storage in storages:
        for kept in tree_leaves(list(storage.values())):
            value = getattr(kept, "val", kept)
            if isinstance(value, Tensor):
                keeper.keep(value)
    found = keeper.bytes
    del outputs
    return found


def check_activations(graph: Graph) -> list[str]:
    """Check that what autograd keeps of a forward is what the graph says, to the byte, or that the ops left out are named.

    In float32 and bfloat16, with nothing, with all but products, and with all of a layer computed again. The names of the
    ops that can't say theirs come back.

    Raises:
        AssertionError: bytes differ.
    """
    left_out: list[str] = []
    given = feed(graph)
    for dtype in DTYPES:
        model = build(graph, device="cpu", dtype=dtype, seed=0)
        fed = _in_dtype(given, dtype)
        for mode in RECOMPUTE:
            said = measure_activations(
                graph_of(model),
                batch_size=BATCH,
                seq_len=LENGTH,
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
