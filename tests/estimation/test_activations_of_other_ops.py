"""What recurrences, experts, mixes of streams and the ops around them keep for backward: the graph's number is autograd's."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.load import loads_spec
from archc.testing.activations import check_activations
from archc.testing.placing import spec_text
from tests.plugins.kinds import EXAMPLES

pytestmark = pytest.mark.torch

ENCODER: dict[str, Any] = {"encoder": {}}
LINFORMER = EXAMPLES["mixer.linformer"].keys
LEARNED: dict[str, Any] = {"position": "learned"}
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 12}
SOFTMAX: dict[str, Any] = {"scoring_func": "softmax", "norm_topk_prob": False}
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a floor under decays": ("mixer.kda", {"num_heads": 2, "head_dim": 8, "decay_floor": -5.0}, {}),
    "keys that heads share": (
        "mixer.gated_deltanet",
        {"num_key_heads": 1, "num_value_heads": 4, "key_head_dim": 8, "value_head_dim": 4},
        {},
    ),
    "steps within limits": (
        "mixer.mamba2",
        {"num_heads": 4, "head_dim": 8, "state_size": 6, "time_step_limit": [0.0, 0.5], "conv_bias": False},
        {},
    ),
    "a scan without norms": ("mixer.mamba1", {"intermediate_size": 24, "state_size": 4, "dt_rank": 3}, {}),
    "features both ways": ("mixer.linear", EXAMPLES["mixer.linear"].keys, ENCODER),
    "random features both ways": ("mixer.performer", EXAMPLES["mixer.performer"].keys, ENCODER),
    "projections of each head": ("mixer.linformer", {**LINFORMER, "sharing": "none"}, LEARNED),
    "one projection for keys and values": ("mixer.linformer", {**LINFORMER, "sharing": "key_value"}, LEARNED),
    "one projection for all layers": ("mixer.linformer", {**LINFORMER, "sharing": "layerwise"}, LEARNED),
    "recurrence one way": ("mixer.gru", {"hidden_size": 16}, {}),
    "plain experts": (
        "ffn.moe",
        {**MOE, "expert": {"kind": "mlp", "activation": "relu2", "bias": True}, "router": SOFTMAX},
        {},
    ),
    "experts with biases": ("ffn.moe", {**MOE, "expert": {"kind": "swiglu", "bias": True}, "router": SOFTMAX}, {}),
    "one expert a token, and a gated shared one": (
        "ffn.moe",
        {**MOE, "num_experts_per_tok": 1, "num_shared_experts": 1, "shared_gate": True, "router": SOFTMAX},
        {},
    ),
    "weights on what experts read": (
        "router.topk",
        {**SOFTMAX, "scoring_func": "sigmoid", "weight_on": "input", "bias": True},
        {},
    ),
    "experts in a narrower space": ("ffn.moe", {**MOE, "latent_size": 8, "latent_norm": True, "router": SOFTMAX}, {}),
    "one stream": ("block.hyper_connections", {"num_streams": 1, "sinkhorn_iters": 1, "eps": 1e-3}, {}),
    "blocks of several layers": ("block.attention_residual", {"block_size": 2}, {}),
    "the first token": ("head.classifier", {"num_labels": 3, "pool": "cls"}, ENCODER),
    "the last token": ("head.classifier", {"num_labels": 3, "pool": "last"}, {}),
}
"""Forms that the examples of kinds don't take: kind, its keys, and the spec around it."""

RECURRENT = ["kda", "gated_deltanet", "gla", "retnet", "lightning", "mamba1", "mamba2", "linear", "performer", "gru"]


def graph_of(kind: str, keys: dict[str, Any], around: dict[str, Any]) -> Graph:
    family, name = kind.split(".")
    return expand(loads_spec(spec_text(family, name, keys, around)))


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_a_kind_keep_what_the_graph_says(form: str):
    graph = graph_of(*FORMS[form])
    assert check_activations(graph) == []
    assert check_activations(graph, 1) == []


@pytest.mark.parametrize("length", [1, 2, 70, 600])
@pytest.mark.parametrize("name", RECURRENT)
def test_one_token_a_part_of_a_chunk_and_several_slabs_are_kept_as_the_graph_says(name: str, length: int):
    given = EXAMPLES[f"mixer.{name}"]
    if name == "gru" and length > 100:
        length = 100  # Token by token, which takes its time.
    graph = graph_of(f"mixer.{name}", given.keys, given.around)
    assert check_activations(graph, length) == []


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize(
    "kind",
    ["mixer.attention_gru", "ffn.moe", "router.token_table", "block.hyper_connections", "block.attention_residual"],
)
def test_one_and_two_tokens_are_kept_as_the_graph_says(kind: str, length: int):
    given = EXAMPLES[kind]
    assert check_activations(graph_of(kind, given.keys, given.around), length) == []
