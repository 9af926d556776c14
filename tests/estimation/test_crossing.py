"""Crossings of costs that nobody thought of, and growth and pictures of every kind there is."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archc.drawing.diagram import diagram
from archc.estimation.complexity import complexity
from archc.estimation.complexity_crossing import crossing
from archc.ir.size import Dim, ceil_div, evaluate, minimum, symbol
from archc.spec.load import loads_spec
from archc.testing.placing import spec_text
from tests.plugins.kinds import EXAMPLES

N = symbol("n")

coefficients = st.integers(-30, 60)
factors: st.SearchStrategy[Dim] = st.one_of(
    st.just(N),
    st.builds(lambda most: minimum(N, most), st.integers(1, 90)),
    st.builds(lambda step, more: ceil_div(N + more, step), st.integers(2, 9), st.integers(0, 3)),
    st.builds(lambda step, most: minimum(ceil_div(N, step), most), st.integers(2, 5), st.integers(1, 20)),
)
terms = st.builds(
    lambda times, parts: times * parts[0] * (parts[1] if len(parts) > 1 else 1),
    coefficients,
    st.lists(factors, min_size=1, max_size=2),
)
costs = st.builds(lambda constant, parts: sum(parts, start=N * 0 + constant), coefficients, st.lists(terms, max_size=3))


def gains(kind: Dim, full: Dim, n: int) -> bool:
    env = {"batch": 1, "n": n}
    return evaluate(kind, env) < evaluate(full, env)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(costs, costs)
def test_from_a_crossing_on_every_length_gains_and_the_one_before_does_not(kind: Dim, full: Dim):
    found = crossing(kind, full)
    if found is None:
        # Whatever length is far away, one soon after it loses.
        assert not all(gains(kind, full, n) for n in range(10**7, 10**7 + 7000))
        return
    assert all(gains(kind, full, n) for n in (*range(found, found + 3000), 10**6, 10**6 + 1, 1 << 40, (1 << 40) + 7))
    assert found == 1 or not gains(kind, full, found - 1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_kind_has_its_growth_and_its_picture(name: str):
    family, _, kind = name.partition(".")
    spec = loads_spec(spec_text(family, kind, EXAMPLES[name].keys, EXAMPLES[name].around))
    found = complexity(spec, lengths=[64])
    assert (
        found.whole.at[64]["prefill"].flops >= sum(one.at[64]["prefill"].flops * one.layers for one in found.kinds) > 0
    )
    assert diagram(spec).startswith("<svg")
