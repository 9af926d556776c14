"""Attention residuals and SiTU: the contract, the formulas written out, and Kimi K3's published counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from archc.errors import GraphError, SpecError  # noqa: E402
from archc.estimation.estimate import estimate  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.graph.vocabulary import Builder  # noqa: E402
from archc.ir.size import BATCH, SEQ  # noqa: E402
from archc.ir.values import TensorType  # noqa: E402
from archc.ops.attention_residual import AttentionResidual  # noqa: E402
from archc.spec.load import load_spec, loads_spec  # noqa: E402
from archc.spec.shipped import shipped_specs  # noqa: E402
from tests.plugins.specs import moe, tiny  # noqa: E402
from tests.plugins.test_references import drawn  # noqa: E402

pytestmark = pytest.mark.torch

EPS = 1e-5


def stacked(layers, block_size, tracks="mixer: mixer, ffn: ffn"):
    """A stack of attention residuals."""
    return f"{{num_layers: {layers}, block: {{kind: attention_residual, block_size: {block_size}}}, {tracks}}}"


STACKS = {
    "blocks of two": stacked(5, 2),
    "blocks of one": stacked(3, 1),
    "one block": stacked(2, 9),
    "half-layers": stacked(4, 2, "layers: mixer ffn mixer ffn"),
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_attention_residuals_keep_the_contract(contract, stack):
    contract(tiny(stack=stack))


def mixture(values, query, norm):
    """One token's values (n, hidden), mixed."""
    scores = [float(query @ (value / torch.sqrt(value.square().mean() + EPS) * norm)) for value in values]
    shares = torch.tensor(scores, dtype=torch.float64).softmax(0)
    return sum(share * value for share, value in zip(shares, values, strict=True))


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_a_stack_is_the_formula_of_what_earlier_blocks_gave(block_size):
    # Feed-forwards alone, so that tokens can be looked at one by one.
    text = tiny(stack=stacked(5, block_size, "mixer: none, ffn: ffn"), more="head: none")
    _, model = drawn(text)
    weights = model.state_dict()
    ids = torch.arange(9).unsqueeze(0)
    with torch.no_grad():
        got = model(ids)[0]

    def read(scope, closed, total):
        return mixture([*closed, total], weights[f"{scope}.proj.weight"][0], weights[f"{scope}.norm.weight"])

    def normed(x, name):
        return x / torch.sqrt(x.square().mean() + EPS) * weights[name]

    def ffn(layer, x):
        gate, up, down = (weights[f"layers.{layer}.ffn.{name}_proj.weight"] for name in ("gate", "up", "down"))
        gated = gate @ x
        return down @ (gated / (1 + torch.exp(-gated)) * (up @ x))

    rows = []
    for token in range(9):
        closed, total = [], weights["embed_tokens.weight"][token]
        for layer in range(5):
            y = ffn(layer, normed(read(f"layers.{layer}.ffn_res", closed, total), f"layers.{layer}.ffn_norm.weight"))
            if layer % block_size == 0:
                closed, total = [*closed, total], y
            else:
                total = total + y
        rows.append(normed(read("output_res", closed, total), "norm.weight"))
    want = torch.stack(rows)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9 * float(want.abs().max()))


def test_equal_layers_of_one_block_share_a_body_and_the_one_that_begins_it_has_another():
    layers = [call.body for call in expand(loads_spec(tiny(stack=stacked(8, 4)))).root.calls()]
    assert len(set(layers[1:4])) == len(set(layers[5:])) == 1
    assert len(set(layers)) == 4


def test_a_layer_that_asks_where_it_stands_is_shared_with_those_that_get_the_same_answers():
    g = Builder()
    x = g.add_input("x", TensorType((BATCH, SEQ, 4)))
    told = []

    def define(g, x):
        told.append((g.layer_begins(2), g.layer_begins(3)))
        return g.activation(x, "silu")

    for index in range(12):
        x = g.layer(index, define, x, key="same")
    bodies = [call.body for call in g.root.calls()]
    assert told == [(True, True), (False, False), (True, False), (False, True)]
    assert bodies[:6] == bodies[6:]
    assert bodies[1] is bodies[5]


def test_weights_over_the_embedding_alone_are_said_to_be_idle():
    graph = expand(loads_spec(tiny(stack=stacked(3, 2))))
    idle = {
        path: node.op.idle_roles([value.type for value in node.inputs])
        for path, node in graph.walk()
        if isinstance(node.op, AttentionResidual)
    }
    assert [path for path, roles in idle.items() if roles] == ["layers.0.mixer_res"]


def test_values_of_different_widths_are_not_mixed():
    g = Builder()
    x, y = (g.add_input(name, TensorType((BATCH, SEQ, width))) for name, width in (("x", 4), ("y", 5)))
    with pytest.raises(GraphError, match="can't be mixed"):
        g.emit(AttentionResidual(eps=EPS), (x, y), name="res")


def test_layers_of_another_layout_do_not_stand_between():
    text = tiny(stack=stacked(3, 2)).replace("head_dim: 8}", "head_dim: 8, block: pre_norm}")
    with pytest.raises(GraphError, match="pre_norm can't stand between layers of attention_residual"):
        expand(loads_spec(text))


def test_kimi_k3_has_the_published_weights_of_its_residuals():
    graph = expand(load_spec(shipped_specs()["kimi-k3"]))
    counted = sum(param.elements for name, param in graph.params().items() if "_res." in name)
    # Two mixtures a layer and one behind the last, each of a norm and a query.
    assert counted == (2 * 93 + 1) * 2 * 7168 == 2_680_832
    by_part = estimate(graph).to_json()["parameters"]["by_part"]
    assert by_part["norm"] == 1_340_416
    assert by_part["mixer"] == {"kda": 30_618_086_496, "mla": 5_572_706_304}
    routed = by_part["ffn"]["moe"]
    assert routed["latent_down_proj"] + routed["latent_up_proj"] + routed["latent_norm"] == 4_727_310_336
    assert routed["shared_experts"] == 12_155_092_992
    assert routed["router"] + 92 * 896 == 590_955_008


SITU = "activation: situ"
FFNS = {
    "as released": f"{{kind: swiglu, intermediate_size: 24, {SITU}}}",
    "tight": f"{{kind: swiglu, intermediate_size: 24, {SITU}, situ_beta: 0.5, situ_linear_beta: 0.7, bias: true}}",
    "one branch": f"{{kind: swiglu, intermediate_size: 24, {SITU}, situ_beta: 0.5, situ_linear_beta: 0}}",
    "experts in a narrower width": moe(
        keys=f"expert: {{kind: swiglu, {SITU}, situ_beta: 0.5}}, latent_size: 10, latent_norm: true, num_shared_experts: 2"
    ),
}


@pytest.mark.parametrize("ffn", FFNS.values(), ids=FFNS)
def test_situ_keeps_the_contract(contract, ffn):
    contract(tiny(ffn=ffn))


@pytest.mark.parametrize(
    ("keys", "beta", "linear"), [("", 4, 25), (", situ_beta: 0.5, situ_linear_beta: 0", 0.5, None)]
)
def test_situ_is_its_formula(keys, beta, linear):
    ffn = f"{{kind: swiglu, intermediate_size: 24, {SITU}{keys}}}"
    stack = "{num_layers: 1, block: {kind: pre_norm, mixer_norm: false}, layers: ffn, final_norm: false}"
    _, model = drawn(tiny(ffn=ffn, stack=stack, more="head: none"))
    weights, ids = model.state_dict(), torch.arange(9).unsqueeze(0)
    with torch.no_grad():
        x = model.embed_tokens(ids)[0]
        got = model(ids)[0] - x
    y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS) * weights["layers.0.ffn_norm.weight"]
    gate, up, down = (weights[f"layers.0.ffn.{name}_proj.weight"].T for name in ("gate", "up", "down"))
    right = y @ up if linear is None else linear * torch.tanh(y @ up / linear)
    want = (beta * torch.tanh(y @ gate / beta) / (1 + torch.exp(-(y @ gate))) * right) @ down
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9 * float(want.abs().max()))


def test_without_caps_situ_is_silu():
    far = f"{{kind: swiglu, intermediate_size: 24, {SITU}, situ_beta: 1.0e9, situ_linear_beta: 1.0e9}}"
    (_, one), (_, other) = drawn(tiny(ffn=far)), drawn(tiny())
    ids = torch.arange(9).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(one(ids), other(ids), rtol=1e-6, atol=1e-8)


def test_numbers_of_situ_belong_to_situ():
    with pytest.raises(SpecError, match="situ_beta: is a number of situ, and the activation is silu"):
        loads_spec(tiny(ffn="{kind: swiglu, intermediate_size: 24, situ_beta: 2.0}"))


K3 = """\
spec_version: 1
name: tiny-k3
tokenizer: {kind: external, vocab_size: 37}
embedding: {hidden_size: 16, tie_word_embeddings: false}
position: none
norm: {kind: rms_norm, eps: 1e-5}
mixers:
  kda: {kind: kda, num_heads: 2, head_dim: 8, full_rank_gate: true, decay_floor: -5.0}
  mla:
    kind: mla
    num_heads: 2
    q_lora_rank: 10
    kv_lora_rank: 12
    qk_nope_head_dim: 8
    qk_rope_head_dim: 4
    v_head_dim: 6
    output_gate: true
ffns:
  dense: {kind: swiglu, intermediate_size: 24, activation: situ}
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    num_shared_experts: 2
    intermediate_size: 12
    expert: {kind: swiglu, activation: situ}
    latent_size: 10
    latent_norm: true
    router: {scoring_func: sigmoid, correction_bias: true, norm_topk_prob: true}
stack:
  num_layers: 5
  block: {kind: attention_residual, block_size: 2}
  mixer: (kda*3 mla)* mla
  ffn: dense moe*
"""


def test_a_small_kimi_k3_keeps_the_contract():
    from archc.testing import check_kind

    # Norms behind experts and over small sums enlarge what float32 rounds.
    said = check_kind("block.attention_residual", spec=K3, tolerance=1e-4).checks[-1]
    assert said.startswith(("ONNX = torch", "ONNX: not checked"))
