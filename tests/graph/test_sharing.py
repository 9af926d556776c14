"""Equal layers share one body; what makes layers differ keeps them apart."""

from __future__ import annotations

import pytest

from archc.expansion import expand
from archc.graph.verify import verify
from archc.graph.vocabulary import Builder
from archc.ir.values import Call
from archc.ops.attention import Attention
from archc.ops.rotary import RopeTable
from archc.spec.load import load_spec
from tests.graph.examples import BY_LAYER, GQA, KDA, MLA, graph_of, rows, small
from tests.timing import timed


def layer_bodies(graph):
    return [call.body for call in graph.root.calls() if call.name.startswith("layers.")]


def tables(graph):
    return [node for node in graph.root.nodes() if isinstance(node.op, RopeTable)]


def test_equal_layers_share_one_body_and_others_don_t():
    bodies = layer_bodies(small(GQA, KDA, mixer="two*3 one two*3 one", layers=8))
    assert [bodies.index(body) for body in bodies] == [0, 0, 0, 3, 0, 0, 0, 3]


def test_one_mixer_under_two_ffns_makes_two_bodies():
    bodies = layer_bodies(small(MLA, ffn="mlp moe*", layers=4))
    assert [bodies.index(body) for body in bodies] == [0, 1, 1, 1]


def test_a_shared_body_is_counted_as_often_as_it_is_entered():
    graph = small(GQA, KDA, mixer="two*3 one two*3 one", layers=8)
    counts = graph.bodies()
    assert {body.label: count for body, count in counts.items()} == {
        "model": 1,
        "two + mlp": 6,
        "two": 6,
        "one + mlp": 2,
        "one": 2,
        "mlp": 2,
    }
    assert sum(count for body, count in counts.items() if body.label == "mlp") == 8


def test_a_layer_that_asks_for_its_number_is_not_shared_and_its_neighbours_are():
    graph = small(GQA, BY_LAYER, mixer="one two one two", layers=4)
    bodies = layer_bodies(graph)
    assert bodies[0] is bodies[2]
    assert bodies[1] is not bodies[3]
    scales = [node.op.scale for _, node in graph.walk() if isinstance(node.op, Attention)]
    assert scales == [8**-0.5, 8**-0.5 / 2, 8**-0.5, 8**-0.5 / 4]


def test_every_layer_has_its_own_names_whatever_it_shares():
    names = list(small(layers=3).params())
    assert len(set(names)) == len(names)
    for layer in range(3):
        assert f"layers.{layer}.mixer.q_proj.weight" in names
        assert f"layers.{layer}.ffn.down_proj.weight" in names


def test_a_rope_table_is_hoisted_once_a_configuration_before_the_layers_that_read_it():
    graph = small(GQA, MLA.replace("v_head_dim", "position: {kind: rope, theta: 500.0}, v_head_dim"), mixer="one two*3")
    assert [node.name for node in tables(graph)] == ["rope_0", "rope_1"]
    assert [len(node.op.frequencies) for node in tables(graph)] == [4, 2]
    first_call = next(i for i, item in enumerate(graph.root.items) if isinstance(item, Call))
    assert graph.root.items.index(tables(graph)[0]) < first_call
    verify(graph)


@pytest.mark.parametrize(("theta", "count"), [("10000.0", 1), ("500.0", 2)])
def test_equal_thetas_share_a_table_and_two_thetas_have_two(theta, count):
    other = GQA.replace("head_dim", f"position: {{kind: rope, theta: {theta}}}, head_dim")
    assert len(tables(small(GQA, other, mixer="(one two)*"))) == count


def test_no_table_is_made_where_nothing_turns():
    assert tables(small(position="none")) == []


def test_captured_values_become_inputs_of_every_scope_between():
    g = Builder()
    x, outside = rows(g), rows(g, "outside")

    def inner(g, x):
        return g.add(x, outside)

    def layer(g, x):
        return g.scope("mixer", inner, g.scale(x, 2.0))

    for index in range(2):
        x = g.layer(index, layer, x, key="same")
    graph = graph_of(g, [x])
    verify(graph)
    first, second = graph.root.calls()
    assert first.body is second.body
    assert first.inputs[1] is second.inputs[1] is outside
    (mixer,) = first.body.calls()
    assert mixer.inputs[1] is first.body.inputs[1]


def test_values_given_by_keyword_are_those_of_each_layer():
    g = Builder()
    x, memories = rows(g), [rows(g, "one"), rows(g, "two")]

    def layer(g, x, *, memory):
        return g.add(x, memory)

    for index, memory in enumerate(memories):
        x = g.layer(index, layer, x, key="same", memory=memory)
    verify(graph_of(g, [x]))
    calls = list(g.root.calls())
    assert calls[0].body is calls[1].body
    assert [call.inputs[1] for call in calls] == memories


def test_layers_over_inputs_of_another_type_are_traced_again():
    g = Builder()
    wide, narrow = rows(g), rows(g, "narrow", width=6)

    def layer(g, x):
        return g.linear("proj", x, x.width)

    for index, x in enumerate((wide, narrow)):
        g.layer(index, layer, x, key="same")
    first, second = g.root.calls()
    assert first.body is not second.body


def test_a_scope_takes_only_what_it_uses_and_gives_each_result_once():
    g = Builder()
    x, unused = rows(g), rows(g, "unused")

    def scope(g, x, unused):
        y = g.scale(x, 2.0)
        return y, x, y

    results = g.scope("scope", scope, x, unused)
    (call,) = g.root.calls()
    assert call.inputs == (x,)
    assert len(call.outputs) == 2
    assert results[0] is results[2]
    assert results[0] is not results[1]
    verify(graph_of(g, list(results)))


def test_ten_thousand_layers_expand_in_about_a_second():
    spec = load_spec("kimi-linear-48b-a3b", ["stack.num_layers=9999"])
    expand(load_spec("kimi-linear-48b-a3b"))
    with timed() as taken:
        graph = expand(spec)
    # A third of this is the goal on a quiet machine.
    assert taken.seconds < 3
    assert len(layer_bodies(graph)) == 9999
    assert len(set(layer_bodies(graph))) <= 4
