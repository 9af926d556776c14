"""A graph finds every promise that is broken: good graphs pass, and each of these changes is found."""

from __future__ import annotations

import pytest

from archc.errors import GraphError
from archc.expansion import expand
from archc.graph.verify import verify
from archc.ir.size import BATCH, SEQ
from archc.ir.values import Body, Node, TensorType, Value
from archc.spec.load import load_spec
from archc.spec.shipped import shipped_specs
from tests.graph.examples import GQA, KDA, small


def hybrid():
    return small(GQA, KDA, mixer="(two one)*", ffn="mlp moe*", layers=4, tied="true")


def scopes(graph):
    """label -> body of the first layers that have one."""
    return {body.label: body for body in graph.bodies()}


def node(graph, label, name):
    return next(item for item in scopes(graph)[label].nodes() if name in (item.name, item.op.op_name))


def swap_items(graph):
    items = scopes(graph)["one"].items
    items[0], items[-1] = items[-1], items[0]


def read_another_body(graph):
    q_proj, add = node(graph, "one", "q_proj"), node(graph, "one + moe", "add")
    q_proj.inputs = add.inputs[:1]


def read_a_value_of_nobody(graph):
    down = node(graph, "mlp", "down_proj")
    down.inputs = (Value(Body("nowhere"), 10**6, down.inputs[0].type),)


def output_of_nobody(graph):
    body = scopes(graph)["mlp"]
    body.outputs[0] = Value(body, 10**6, body.outputs[0].type)


def retype(graph):
    node(graph, "mlp", "up_proj").outputs[0].type = TensorType((BATCH, SEQ, 48), axis="heads")


def lose_an_output(graph):
    item = node(graph, "moe", "router")
    item.outputs = item.outputs[:1]


def widen_a_call_argument(graph):
    body = scopes(graph)["mlp"]
    body.inputs[0].type = body.inputs[0].type.with_width(16)
    for name in ("gate_proj", "up_proj"):
        item = node(graph, "mlp", name)
        item.params["weight"].shape = (48, 16)


def drop_a_call_argument(graph):
    layer = scopes(graph)["one + moe"]
    call = next(call for call in layer.calls() if call.name == "mixer")
    call.inputs = call.inputs[:-1]


def rename_a_leaf(graph):
    node(graph, "one", "k_proj").name = "q_proj"


def rename_a_layer(graph):
    list(graph.root.calls())[3].name = "layers.2"


def rename_a_weight(graph):
    node(graph, "one", "k_proj").params["weight"].name = "q_proj.weight"


def two_weights_of_a_name(graph):
    # Of one leaf, so that no name of a leaf says it first.
    item = node(graph, "two", "conv")
    item.params["q_conv1d.weight"].name = item.params["k_conv1d.weight"].name


def copy_a_tied_weight(graph):
    head = node(graph, "model", "lm_head")
    tied = head.params["weight"]
    head.params["weight"] = type(tied)(tied.name, tied.shape, axes=tied.axes)


def resize_a_weight(graph):
    node(graph, "one", "k_proj").params["weight"].shape = (16, 31)


def train_a_buffer(graph):
    node(graph, "moe", "router").params["e_score_correction_bias"].trainable = True


def lose_a_weight(graph):
    del node(graph, "one", "o_proj").params["weight"]


def resize_a_state(graph):
    state = node(graph, "one", "attention").states["key"]
    state.allocated = state.used


def retype_a_state(graph):
    node(graph, "two", "delta_rule").states["recurrent_state"].dtype = "bfloat16"


def write_a_state_twice(graph):
    states = node(graph, "one", "attention").states
    states["value"].name = states["key"].name


def change_an_attribute(graph):
    object.__setattr__(node(graph, "one", "attention").op, "num_kv_heads", 4)


def hide_the_output(graph):
    graph.root.outputs.clear()


BROKEN = {
    swap_items: "used before it is made",
    read_another_body: "belongs to another body",
    read_a_value_of_nobody: "belongs to another body",
    output_of_nobody: "mlp: outputs: ",
    retype: "the op says",
    lose_an_output: "the op says",
    widen_a_call_argument: "don't fit the body mlp",
    drop_a_call_argument: "don't fit the body one",
    rename_a_leaf: "q_proj",
    rename_a_layer: "the name is used twice",
    rename_a_weight: "weight is q_proj.weight",
    two_weights_of_a_name: "k_conv1d.weight",
    copy_a_tied_weight: "two weights are called embed_tokens.weight",
    resize_a_weight: r"weight is k_proj.weight\[16, 31\], the op says weight\[16, 32\]",
    train_a_buffer: "e_score_correction_bias",
    lose_a_weight: "weight is None",
    resize_a_state: "key is attention.key",
    retype_a_state: "recurrent_state",
    write_a_state_twice: "attention.key",
    change_an_attribute: "attention",
    hide_the_output: "output logits does not leave the root",
}


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_a_broken_promise_is_found(change):
    graph = hybrid()
    verify(graph)
    change(graph)
    with pytest.raises(GraphError, match=BROKEN[change]):
        verify(graph)


def test_extra_prediction_layers_are_verified_too():
    graph = small(more="mtp: {num_layers: 1, mixer: one, ffn: mlp}")
    verify(graph)
    assert graph.mtp is not None
    next(item for item in graph.mtp.root.items if isinstance(item, Node) and item.name == "eh_proj").name = "enorm"
    with pytest.raises(GraphError, match="enorm"):
        verify(graph)


@pytest.mark.parametrize("name", shipped_specs())
def test_shipped_graphs_hold_all_promises(name):
    graph = expand(load_spec(name))
    verify(graph)
    assert graph.params()
