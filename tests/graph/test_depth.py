"""A graph with fewer layers is still the architecture: every distinct layer, in order, under its name."""

from __future__ import annotations

import pytest

from archc.expansion import expand
from archc.graph.depth import shallow
from archc.graph.verify import verify
from archc.spec.load import load_spec
from archc.spec.shipped import shipped_specs


@pytest.mark.parametrize("name", shipped_specs())
def test_every_body_of_a_shipped_graph_survives(name: str) -> None:
    graph = expand(load_spec(name))
    cut = shallow(graph)
    verify(cut)
    assert set(cut.bodies()) - {cut.root} == set(graph.bodies()) - {graph.root}
    assert cut.params().items() <= graph.params().items()
    assert cut.states().items() <= graph.states().items()
    assert list(cut.params()) == [key for key in graph.params() if key in cut.params()]
    layers = [call.name for call in cut.root.calls() if call.name.startswith("layers.")]
    distinct = {call.body for call in cut.root.calls() if call.name.startswith("layers.")}
    assert cut.num_layers >= len(layers)
    # The first two layers stay even where they are equal.
    assert len(layers) in (len(distinct), len(distinct) + 1)


def test_a_hybrid_of_27_layers_keeps_three() -> None:
    graph = expand(load_spec("kimi-linear-48b-a3b"))
    cut = shallow(graph)
    assert [call.name for call in cut.root.calls()] == ["layers.0", "layers.1", "layers.3"]
    assert cut.outputs["logits"].shape == graph.outputs["logits"].shape


def test_a_layer_of_several_streams_that_goes_hands_them_on() -> None:
    graph = expand(load_spec("kimi-k3"))
    cut = shallow(graph)
    # In each of eight blocks the layer that begins it, and of those inside one of either mixer; before them a dense one.
    assert (graph.num_layers, cut.num_layers) == (93, 24)


def test_layers_that_read_others_stay_behind_them() -> None:
    cut = shallow(expand(load_spec("demo-yoco")))
    assert [call.name for call in cut.root.calls()] == ["layers.0", "layers.1", "layers.11", "layers.12"]


def test_equal_layers_keep_two_so_that_one_follows_another() -> None:
    cut = shallow(expand(load_spec("llama-3.1-405b")))
    assert [call.name for call in cut.root.calls()] == ["layers.0", "layers.1"]


def test_a_graph_of_distinct_layers_comes_back_itself() -> None:
    graph = expand(load_spec("tiny-llama", ("stack.num_layers=2",)))
    assert shallow(graph) is graph
