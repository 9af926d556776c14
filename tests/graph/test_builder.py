"""What a ``define`` may not do is an error that names the scope and the op."""

from __future__ import annotations

import pytest

from archc.errors import GraphError
from archc.graph.verify import verify
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, SEQ
from archc.ir.values import TensorType
from archc.ops.moe import Route
from tests.graph.examples import graph_of, rows


def message(define, width=8, axis=None):
    """The error of a ``define`` inside layers.3.mixer."""
    g = Builder()
    x = rows(g, width=width, axis=axis)

    def layer(g, x):
        return g.scope("mixer", define, x)

    with pytest.raises(GraphError) as caught:
        g.layer(3, layer, x, key="layer")
    return str(caught.value)


def heads(g, x, *names, axis="heads", width=8):
    return [g.linear(name, x, width, axis=axis) for name in names]


def attend(g, x, q=8, k=4, v=4, **words):
    widths = {"q": q, "k": k, "v": v}
    values = [g.linear(f"{name}_proj", x, width, axis="heads") for name, width in widths.items()]
    return g.attention("attention", *values, **{"num_heads": 4, "num_kv_heads": 2, "scale": 1.0, **words})


def route(g, x, **words):
    return g.route("router", x, Route(scoring_func="softmax", norm_topk_prob=True, **words))


def delta(g, x, **words):
    q, k, v, decay = heads(g, x, *"qkvd")
    return g.linear_attention("delta_rule", q, k, v, decay, g.linear("b", x, 2, axis="heads"), **words)


BROKEN = {
    "a name used twice": (
        lambda g, x: g.linear("q_proj", g.linear("q_proj", x, 8), 8),
        "the name 'q_proj' is used twice",
    ),
    "a scope named like an op": (
        lambda g, x: g.scope("q_proj", lambda g, x: g.scale(x, 2.0), g.linear("q_proj", x, 8)),
        "the name 'q_proj' is used twice",
    ),
    "an op with weights without a name": (
        lambda g, x: g.linear("", x, 8),
        "linear has weights or a state, so it needs a name",
    ),
    "a sum across axes": (
        lambda g, x: g.add(g.linear("a", x, 8, axis="heads"), g.linear("b", x, 8, axis="ffn")),
        "add: operands are cut along different axes (heads and ffn)",
    ),
    "a sum of a cut and a whole value": (
        lambda g, x: g.add(g.linear("a", x, 8, axis="heads"), x),
        "add: operands are cut along different axes (heads and None)",
    ),
    "a sum of different widths": (
        lambda g, x: g.add(g.linear("a", x, 6), x),
        "add: shapes model[batch, seq, 6] and model[batch, seq, 8] don't fit",
    ),
    "a product of two dtypes": (
        lambda g, x: g.mul(g.cast(x, "float32"), x),
        "mul: operands are float32 and model; cast one of them",
    ),
    "a split that does not add up": (lambda g, x: g.split(x, (3, 4)), "split: (3, 4) don't add up to 8"),
    "values joined across axes": (
        lambda g, x: g.concat(g.linear("a", x, 8, axis="heads"), g.linear("b", x, 8, axis="ffn")),
        "concat: axes or dtypes differ: model[batch, seq, 8, heads], model[batch, seq, 8, ffn]",
    ),
    "values of two dtypes joined": (
        lambda g, x: g.concat(x, g.cast(x, "float32")),
        "concat: axes or dtypes differ: model[batch, seq, 8], float32[batch, seq, 8]",
    ),
    "a rotation of nothing": (
        lambda g, x: g.rotary(x, g.rope_table(()), head_dim=8, dim=0),
        "turns nothing; partial_rotary_factor is too small for the head",
    ),
    "an unknown activation": (lambda g, x: g.activation(x, "swish"), "activation 'swish' is unknown"),
    "a head that does not divide the width": (
        lambda g, x: g.rms_norm("q_norm", x, eps=1e-5, head_dim=3),
        "q_norm: rms_norm: width 8 is no multiple of head_dim 3",
    ),
    "a rotation wider than the head": (
        lambda g, x: g.rotary(x, g.rope_table((1.0, 0.5, 0.25)), head_dim=4, dim=6),
        "rotary: Rotary(head_dim=4, dim=6, offset=0, style='half') doesn't fit",
    ),
    "a table of another length": (
        lambda g, x: g.rotary(x, g.rope_table((1.0,)), head_dim=8, dim=4),
        "doesn't fit model[batch, seq, 8] and a table of 1 frequencies",
    ),
    "keys that don't fit the queries": (lambda g, x: attend(g, x, q=12), "attention: q, k, v are 12, 4, 4 wide"),
    "heads that can't be grouped": (
        lambda g, x: attend(g, x, k=6, v=6, num_kv_heads=3),
        "attention: 4 heads are no multiple of 3",
    ),
    "a gate of another width": (
        lambda g, x: g.gated_norm("o_norm", x, g.linear("gate", x, 4), head_dim=4, eps=1e-5),
        "o_norm: gated_norm: model[batch, seq, 8] and its gate model[batch, seq, 4] differ",
    ),
    "more experts a token than there are": (
        lambda g, x: route(g, x, num_experts=4, top_k=5),
        "router: route: 5 of 4 experts can't be chosen",
    ),
    "an unknown rule": (
        lambda g, x: delta(g, x, head_dim=4, rule="hebbian"),
        "delta_rule: linear_attention: rule 'hebbian' is unknown",
    ),
    "fewer streams than names": (
        lambda g, x: g.causal_conv(("a", "b"), (x,), kernel=4),
        "conv: causal_conv: 2 streams are named, 1 given",
    ),
}


@pytest.mark.parametrize(("define", "words"), BROKEN.values(), ids=BROKEN)
def test_an_illegal_step_is_an_error_that_names_the_scope_and_what_is_wrong(define, words):
    found = message(define)
    assert found.startswith("layers.3.mixer: ")
    assert words in found


def test_a_message_says_the_name_of_an_op_once():
    assert message(lambda g, x: attend(g, x, q=12)).count("attention:") == 1


def test_a_value_of_a_closed_scope_is_refused_and_its_user_named():
    g = Builder()
    x = rows(g)
    kept = []

    def hide(g, x):
        kept.append(g.scale(x, 2.0))
        return kept[0]

    g.scope("first", hide, x)

    def use(g, x):
        return g.linear("q_proj", kept[0], 8)

    with pytest.raises(GraphError, match=r"^second: q_proj: %\d+: model\[batch, seq, 8\] was made inside a scope that"):
        g.scope("second", use, x)
    with pytest.raises(GraphError, match=r"^model: add: .* return it from there$"):
        g.add(x, kept[0])
    with pytest.raises(GraphError, match=r"^model: third: "):
        g.scope("third", hide, kept[0])
    with pytest.raises(GraphError, match=r"^fourth: its result: "):
        g.scope("fourth", lambda g, x: kept[0], x)


def test_the_layer_of_a_weight_is_asked_for_inside_a_layer_only():
    g = Builder()
    with pytest.raises(AssertionError, match="inside a layer"):
        _ = g.layer_index


def test_a_shared_weight_has_the_shape_of_the_product():
    g = Builder()
    x, table = g.embedding("embed_tokens", g.sources["input_ids"], 50, 8)
    with pytest.raises(GraphError, match=r"^model: lm_head: embed_tokens.weight\[50, 8\] is no weight of 8 -> 49$"):
        g.linear("lm_head", x, 49, weight=table)
    logits = g.linear("lm_head", x, 50, weight=table)
    verify(graph_of(g, [logits]))
    assert list(graph_of(g, []).params()) == ["embed_tokens.weight"]


def test_no_norm_rules_outside_a_layer():
    g = Builder()
    with pytest.raises(GraphError, match="no norm rules here"):
        g.norm("latent_norm", rows(g))


def test_an_output_carries_its_axis_and_the_next_weight_is_cut_along_it():
    g = Builder()
    y = g.linear("gate_proj", rows(g), 6, axis="ffn")
    assert y.type.key() == TensorType((BATCH, SEQ, 6), axis="ffn").key()
    assert g.linear("down_proj", g.scale(y, 2.0), 8).axis is None
    nodes = {node.name: node for node in g.root.nodes()}
    assert nodes["gate_proj"].params["weight"].axes == ("ffn", None)
    assert nodes["down_proj"].params["weight"].axes == (None, "ffn")


def test_a_factor_of_one_places_nothing():
    g = Builder()
    x = rows(g)
    assert g.scale(x, 1.0) is x
    assert g.scale(x, 2.0) is not x
    assert [node.op.op_name for node in g.root.nodes()] == ["scale"]


def test_ops_are_frozen_and_equal_when_their_attributes_are():
    one = Route(num_experts=4, top_k=2, scoring_func="softmax", norm_topk_prob=True)
    same = Route(num_experts=4, top_k=2, scoring_func="softmax", norm_topk_prob=True)
    other = Route(num_experts=4, top_k=2, scoring_func="softmax", norm_topk_prob=False)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    with pytest.raises(AttributeError, match="top_k"):
        one.top_k = 3
