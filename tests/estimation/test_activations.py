"""What training keeps from forward to backward: the graph's number is autograd's, to the byte, for every kind."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from archc.expansion import expand
from archc.spec.load import load_spec, loads_spec
from archc.spec.shipped import shipped_specs
from archc.testing.activations import check_activations
from archc.testing.placing import spec_text
from tests.plugins.kinds import EXAMPLES

pytestmark = pytest.mark.torch

TINY = [name for name in shipped_specs() if name.startswith("tiny-")]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_says_what_its_activations_are(kind: str):
    given = EXAMPLES[kind]
    family, name = kind.split(".")
    graph = expand(loads_spec(spec_text(family, name, given.keys, given.around)))
    assert check_activations(graph) == []


@pytest.mark.parametrize("name", TINY)
def test_tiny_specs_keep_what_the_graph_says(name: str):
    assert check_activations(expand(load_spec(name))) == []
