"""Norms, plain and GELU-gated feed-forwards and residual layouts: each keeps the contract, and is its formula."""

from __future__ import annotations

import pytest

from archc.errors import GraphError, SpecError
from archc.expansion import expand
from archc.spec.load import loads_spec
from tests.plugins.specs import gqa, kda, mla, moe, swiglu, tiny

pytestmark = pytest.mark.torch

NORMS = {
    "layer_norm": "{kind: layer_norm, eps: 1.0e-5}",
    "layer_norm without a bias": "{kind: layer_norm, eps: 1.0e-5, bias: false}",
    "none": "none",
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_a_norm_keeps_the_contract(contract, norm):
    contract(tiny(norm=norm))


@pytest.mark.parametrize("qk_norm", ["head", "width"])
@pytest.mark.parametrize("norm", [NORMS["layer_norm"], NORMS["layer_norm without a bias"]])
def test_a_layer_norm_of_queries_and_keys_keeps_the_contract(contract, norm, qk_norm):
    contract(tiny(gqa(f"qk_norm: {qk_norm}"), norm=norm))


def test_a_layer_norm_of_latents_keeps_the_contract(contract):
    contract(tiny(mla("q_lora_rank: 10"), norm=NORMS["layer_norm"]))


ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2", "silu", "sigmoid", "tanh", "softplus")
FFNS = {
    **{f"mlp with {name}": f"{{kind: mlp, intermediate_size: 24, activation: {name}}}" for name in ACTIVATIONS},
    "mlp with biases": "{kind: mlp, intermediate_size: 24, activation: gelu, bias: true}",
    "geglu": "{kind: geglu, intermediate_size: 24}",
    "geglu by tanh": "{kind: geglu, intermediate_size: 24, activation: gelu_tanh}",
    "geglu with biases": "{kind: geglu, intermediate_size: 24, bias: true}",
    "moe of geglu": moe(keys="expert: geglu, num_shared_experts: 1"),
    "moe of plain experts": moe(keys="expert: {kind: mlp, activation: relu2}"),
    "moe of plain experts with biases, and a shared one": moe(
        keys="expert: {kind: mlp, activation: gelu, bias: true}, num_shared_experts: 1"
    ),
    "moe of plain experts weighed before": moe(
        "scoring_func: sigmoid, norm_topk_prob: false, weight_on: input", "expert: {kind: mlp, activation: silu}"
    ),
}


@pytest.mark.parametrize("ffn", FFNS.values(), ids=FFNS)
def test_a_feed_forward_keeps_the_contract(contract, ffn):
    contract(tiny(ffn=ffn))


BLOCKS = ("post_norm", "sandwich", "output_norm", "normed_residual", "parallel")
FORMS = {
    **{name: f"{{kind: {name}}}" for name in BLOCKS[:4]},
    "parallel, one norm": "{kind: parallel, shared_norm: true}",
    "parallel, two norms": "{kind: parallel, shared_norm: false}",
}


@pytest.mark.parametrize("block", FORMS.values(), ids=FORMS)
def test_a_layout_keeps_the_contract(contract, block):
    contract(tiny(stack=f"{{num_layers: 2, block: {block}, mixer: mixer, ffn: ffn}}"))


@pytest.mark.parametrize("block", FORMS.values(), ids=FORMS)
def test_a_layout_with_multipliers_around_half_layers_keeps_the_contract(contract, block):
    keyed = block.replace("}", ", residual_multiplier: 0.7, skip_multiplier: 1/sqrt(2)}")
    contract(tiny(stack=f"{{num_layers: 4, block: {keyed}, layers: mixer ffn mixer+ffn ffn}}"))


@pytest.mark.parametrize("block", BLOCKS)
def test_mixer_norm_is_a_key_of_pre_norm_only(block):
    keys = ", shared_norm: true" if block == "parallel" else ""
    stack = f"{{num_layers: 2, block: {{kind: {block}{keys}, mixer_norm: false}}, mixer: mixer, ffn: ffn}}"
    with pytest.raises(SpecError, match="mixer_norm: unknown key"):
        loads_spec(tiny(stack=stack))


def test_parallel_branches_have_no_default_for_their_norm():
    with pytest.raises(SpecError, match="shared_norm is required"):
        loads_spec(tiny(stack="{num_layers: 2, block: parallel, mixer: mixer, ffn: ffn}"))


@pytest.mark.parametrize("block", FORMS.values(), ids=FORMS)
def test_only_post_norm_ends_without_a_norm_unless_the_stack_says_so(block):
    def ends_in_a_norm(keys: str) -> bool:
        text = tiny(stack=f"{{num_layers: 2, block: {block}, mixer: mixer, ffn: ffn{keys}}}")
        return "norm.weight" in expand(loads_spec(text)).params()

    assert ends_in_a_norm("") == ("post_norm" not in block)
    assert ends_in_a_norm(", final_norm: true")
    assert not ends_in_a_norm(", final_norm: false")


def test_a_shared_norm_is_the_mixer_s_own_and_there_is_one_a_layer():
    stack = "{num_layers: 1, block: {kind: parallel, shared_norm: true}, mixer: mixer, ffn: ffn}"
    mixer = gqa("norm: {kind: layer_norm, eps: 0.1}")
    graph = expand(loads_spec(tiny(mixer, stack=stack)))
    norms = {path: node.op.op_name for path, node in graph.walk() if path.startswith("layers") and "norm" in path}
    assert norms == {"layers.0.mixer_norm": "layer_norm"}


def formula(kind, layer, x):
    """A layer as published, one branch after another; ``residual_multiplier`` is 0.5, ``skip_multiplier`` 0.25."""
    norm = dict(layer.named_children())
    if kind.startswith("parallel"):
        normed = norm["mixer_norm"](x)
        other = normed if kind == "parallel, one norm" else norm["ffn_norm"](x)
        return 0.25 * x + 0.5 * (layer.mixer(normed) + layer.ffn(other))
    for name in ("mixer", "ffn"):
        branch = getattr(layer, name)
        match kind:
            case "post_norm":
                x = norm[f"{name}_norm"](0.25 * x + 0.5 * branch(x))
            case "sandwich":
                x = 0.25 * x + 0.5 * norm[f"{name}_output_norm"](branch(norm[f"{name}_norm"](x)))
            case "output_norm":
                x = 0.25 * x + 0.5 * norm[f"{name}_output_norm"](branch(x))
            case "normed_residual":
                x = norm[f"{name}_norm"](x)
                x = 0.25 * x + 0.5 * branch(x)
    return x


def drawn(text):
    """A float64 model whose every weight is random."""
    torch = pytest.importorskip("torch")
    from archc.torch_backend.build import build

    model = build(loads_spec(text), device="cpu", dtype="float64")
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) * weight.shape[-1] ** -0.5)
    return model.requires_grad_(False)


@pytest.mark.parametrize("kind", FORMS)
def test_a_layer_is_the_formula_of_its_layout(kind):
    torch = pytest.importorskip("torch")
    keyed = FORMS[kind].replace("}", ", residual_multiplier: 0.5, skip_multiplier: 0.25}")
    stack = f"{{num_layers: 1, block: {keyed}, mixer: mixer, ffn: ffn, final_norm: false}}"
    model = drawn(tiny(gqa("position: none"), swiglu(), stack=stack, more="head: none"))
    ids = torch.arange(9).unsqueeze(0)
    torch.testing.assert_close(model(ids), formula(kind, model.get_submodule("layers.0"), model.embed_tokens(ids)))


@pytest.mark.parametrize("keys", ["", ", bias: false"])
def test_a_layer_norm_is_its_formula(keys):
    torch = pytest.importorskip("torch")
    model = drawn(tiny(norm=f"{{kind: layer_norm, eps: 0.25{keys}}}"))
    x = 3 + torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    off = x - x.mean(-1, keepdim=True)
    want = off / torch.sqrt(off.square().mean(-1, keepdim=True) + 0.25) * model.norm.weight
    want = want if keys else want + model.norm.bias
    torch.testing.assert_close(model.norm(x), want)


@pytest.mark.parametrize(("name", "inner"), [("gelu", "erf"), ("gelu_tanh", "tanh"), ("relu2", "square")])
def test_a_plain_feed_forward_is_its_formula(name, inner):
    torch = pytest.importorskip("torch")
    ffn = f"{{kind: mlp, intermediate_size: 24, activation: {name}, bias: true}}"
    model = drawn(tiny(ffn=ffn)).get_submodule("layers.0.ffn")
    x = 2 * torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = x @ model.up_proj.weight.T + model.up_proj.bias
    match inner:
        case "erf":
            h = h / 2 * (1 + torch.erf(h / 2**0.5))
        case "tanh":
            h = h / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))
        case _:
            h = h.clamp(min=0) ** 2
    torch.testing.assert_close(model(x), h @ model.down_proj.weight.T + model.down_proj.bias)


@pytest.mark.parametrize("qk_norm", ["head", "width"])
def test_a_norm_of_queries_and_keys_needs_one_that_norms(qk_norm):
    with pytest.raises(GraphError, match=f"qk_norm {qk_norm} norms nothing: the norm is none; state the mixer's"):
        expand(loads_spec(tiny(gqa(f"qk_norm: {qk_norm}"), norm="none")))
    own = gqa(f"qk_norm: {qk_norm}, norm: {{kind: layer_norm, eps: 1.0e-5}}")
    assert "layers.0.mixer.q_norm.weight" in expand(loads_spec(tiny(own, norm="none"))).params()


def test_a_mixer_whose_own_norms_need_an_eps_has_none_from_no_norm():
    with pytest.raises(GraphError, match="none has no eps, and this mixer needs one for its own norms"):
        expand(loads_spec(tiny(kda(), norm="none")))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_layer_norm_of_half_precision_takes_its_mean_in_float32(dtype):
    torch = pytest.importorskip("torch")
    from archc.torch_backend.build import build

    norm = build(loads_spec(tiny(norm=NORMS["layer_norm"])), device="cpu", dtype=dtype, seed=0).norm
    x = (30 + torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))).to(getattr(torch, dtype))
    got = norm(x).detach()
    off = x.double() - x.double().mean(-1, keepdim=True)
    want = off / torch.sqrt(off.square().mean(-1, keepdim=True) + 1e-5)
    assert got.dtype == x.dtype
    # One rounding of the result, which is about 3 large, and none of a mean of 30.
    assert float((got.double() - want).abs().max()) < 3 * torch.finfo(x.dtype).eps
