"""What training keeps of every shipped spec at its real width, to the byte: autograd runs on tensors that have no numbers."""

from __future__ import annotations

from weakref import WeakSet

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from archc.errors import SpecError
from archc.estimation.activations import measure_activations
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.load import load_spec
from archc.spec.schema import Spec
from archc.spec.shipped import shipped_specs
from archc.testing.feeding import BATCH, SOURCE_LENGTH, feed
from archc.torch_backend.build import build
from archc.torch_backend.leaves import numbers, random_features

pytestmark = pytest.mark.torch

LENGTH, LAYERS = 300, 6
SHORTER = {"bahdanau-2015": 20}
"""What goes token by token takes its time."""


class Kept:
    """What autograd holds in place of a tensor: itself, or, of one that would hold its own node in turn, one without."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor if tensor.grad_fn is None else tensor.detach()


def short(name: str) -> Spec:
    """The spec with a few layers of each stack where its schedule goes with that, else whole."""
    spec = load_spec(name)
    sections = [section for section in ("stack", "encoder", "decoder") if getattr(spec, section) is not None]
    try:
        return load_spec(name, [f"{section}.num_layers={LAYERS}" for section in sections])
    except SpecError:
        return spec


def autograd_keeps(graph: Graph, length: int) -> int:
    """Bytes that a training forward leaves for backward, in bfloat16; weights apart."""
    saved: WeakSet[Kept] = WeakSet()

    def save(tensor: torch.Tensor) -> Kept:
        kept = Kept(tensor)
        saved.add(kept)
        return kept

    made_once = (numbers._kept, random_features._kept)
    for cache in made_once:
        cache.cache_clear()
    try:
        with FakeTensorMode():
            model = build(graph, device="cpu", dtype="bfloat16")
            given = feed(graph, length)
            if given.main.is_floating_point():
                given = type(given)(graph, given.main.bfloat16(), given.by_token, given.source, given.always)
            weights = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
            with torch.autograd.graph.saved_tensors_hooks(save, lambda kept: kept.tensor):
                outputs = given.run(model)
            storages = [each.tensor.untyped_storage() for each in saved]
            del outputs
            return sum({each._cdata: each.nbytes() for each in storages if each._cdata not in weights}.values())
    finally:
        # Tensors without numbers must not be given to anyone else.
        for cache in made_once:
            cache.cache_clear()


@pytest.mark.parametrize("name", shipped_specs())
def test_every_shipped_spec_keeps_what_its_graph_says(name: str):
    graph, length = expand(short(name)), SHORTER.get(name, LENGTH)
    said = measure_activations(
        graph, batch_size=BATCH, seq_len=length, source_len=SOURCE_LENGTH, dtype="bfloat16", device="cpu"
    )
    assert said.left_out == []
    assert autograd_keeps(graph, length) == said.bytes
