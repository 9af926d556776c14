"""Linear kinds that see a whole text: linear attention and Performers in a bidirectional stack, and Linformer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from archc.errors import GraphError, SpecError  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.ops.random_features import directions  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.testing.contract import forward_flops  # noqa: E402
from archc.torch_backend.build import build  # noqa: E402
from tests.plugins.specs import tiny  # noqa: E402
from tests.plugins.test_references import drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch

LENGTH, LONGEST, HEADS, WIDTH, ROWS = 14, 40, 2, 8, 5
STACK = (
    "{num_layers: 1, block: {kind: pre_norm, mixer_norm: false}, layers: mixer, final_norm: false, mask: bidirectional}"
)
TWO = "{num_layers: 2, block: pre_norm, mixer: mixer, ffn: ffn, mask: bidirectional}"
SHARINGS = ("none", "headwise", "key_value", "layerwise")
LINEAR = "{kind: linear, num_heads: 2, head_dim: 8, eps: 1.0e-3}"
PERFORMER = "{kind: performer, num_heads: 2, head_dim: 8, num_features: 12, seed: 3}"
LINFORMER = {
    name: f"{{kind: linformer, num_heads: 2, head_dim: 8, projected_length: 5, sharing: {name}}}" for name in SHARINGS
}
MIXERS = {"linear": LINEAR, "performer": PERFORMER, **LINFORMER}


def text(mixer, stack=STACK, position="none", more="head: none"):
    return tiny(mixer, stack=stack, position=position, more=f"{more}\nmax_position_embeddings: {LONGEST}")


def split(x):
    """(seq, heads x d) -> (heads, seq, d)."""
    return x.unflatten(-1, (HEADS, -1)).transpose(0, 1)


def projections(x, w):
    return (split(x @ w[f"{n}_proj.weight"].T) for n in "qkv")


def of_scores(scores, v, w, eps=0.0):
    o = scores / (scores.sum(-1, keepdim=True) + eps) @ v
    return o.transpose(0, 1).flatten(1) @ w["o_proj.weight"].T


def linear_written_out(x, w, root):
    q, k, v = projections(x, w)
    return of_scores((functional.elu(q) + 1) @ (functional.elu(k) + 1).mT, v, w, eps=1e-3)


def performer_written_out(x, w, root):
    q, k, v = (y * factor for y, factor in zip(projections(x, w), (WIDTH**-0.25, WIDTH**-0.25, 1.0), strict=True))
    rows = torch.tensor(directions(12, WIDTH, 3), dtype=torch.float64)
    f, h = ((y @ rows.T - y.square().sum(-1, keepdim=True) / 2).exp() for y in (q, k))
    return of_scores(f @ h.mT, v, w)


def linformer_written_out(x, w, root):
    q, k, v = projections(x, w)
    shared = w.get("length_proj.weight", root.get("length_proj_0.weight"))
    e, f = w.get("k_length_proj.weight", shared), w.get("v_length_proj.weight", shared)
    # Tables hold a row a position: E and F of the paper, turned, for each head or for all of them.
    e, f = (table[: len(x)].unflatten(-1, (-1, ROWS)).permute(1, 2, 0) for table in (e, f))
    scores = (q @ (e @ k).mT * WIDTH**-0.5).softmax(-1)
    return of_scores(scores, f @ v, w)


WRITTEN_OUT = {"linear": linear_written_out, "performer": performer_written_out}


@pytest.mark.parametrize("name", MIXERS)
def test_the_layer_equals_its_formula_in_values_and_gradients(name):
    _, model = drawn(text(MIXERS[name]))
    ids = torch.arange(LENGTH).unsqueeze(0)
    table = model.get_submodule("embed_tokens").weight
    x = table[:LENGTH]
    got = model(ids)[0] - x
    written_out = WRITTEN_OUT.get(name, linformer_written_out)
    want = written_out(x, weights_of(model, "layers.0.mixer"), {k: v.double() for k, v in model.state_dict().items()})
    d_out = torch.randn(got.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradients = [torch.autograd.grad(y, table, d_out, retain_graph=True)[0] for y in (got, want)]
    for one, other in ((got, want), gradients):
        # Features are float32 by design.
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6 * float(other.detach().abs().max()))


@pytest.mark.parametrize("position", ["none", "learned"])
@pytest.mark.parametrize("name", MIXERS)
def test_padding_on_either_side_changes_nothing(name, position):
    _, model = drawn(text(MIXERS[name], TWO, position, more=""))
    ids = torch.randint(0, 40, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    padded = torch.cat((ids, torch.full((2, 4), 7)), 1)
    mask = torch.cat((torch.ones_like(ids), torch.zeros(2, 4, dtype=torch.int64)), 1)
    with torch.no_grad():
        want = model(ids)
        right = model(padded, attention_mask=mask)[:, :LENGTH]
        left = model(padded.roll(4, 1), attention_mask=mask.roll(4, 1))[:, 4:]
        assert not torch.allclose(model(padded)[:, :LENGTH], want, atol=1e-3)
    for found in (right, left):
        torch.testing.assert_close(found, want, rtol=0, atol=2e-6 * float(want.abs().max()))


@pytest.mark.parametrize("pairs", ["needed", "dense"])
@pytest.mark.parametrize("name", MIXERS)
def test_the_twin_gives_the_same_and_torch_counts_in_it_what_the_graph_says(name, pairs):
    graph = expand(loads_spec(text(MIXERS[name], TWO, "learned", more="")))
    model, twin = build(graph, device="cpu", seed=0), build(graph, device="cpu", twin=pairs)
    twin.load_state_dict(model.state_dict())
    ids = torch.randint(0, 40, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        found = twin(ids)
    assert counter.get_total_flops() == forward_flops(graph, batch=2, seq=LENGTH, past=0, form="many", pairs=pairs)
    torch.testing.assert_close(found, model(ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MIXERS)
def test_nothing_is_kept_and_costs_grow_with_the_text(name):
    graph = expand(loads_spec(text(MIXERS[name], TWO, more="")))
    assert not graph.states()
    one, two, three = (forward_flops(graph, batch=1, seq=n, past=0, form="many", pairs="dense") for n in (10, 20, 30))
    assert two - one == three - two > 0


@pytest.mark.parametrize("name", ["linear", "performer", "headwise"])
def test_an_encoder_that_a_decoder_reads_keeps_the_contract(contract, name):
    from archc.testing.placing import spec_text

    kind, keys = ("linformer", {"projected_length": 5}) if name == "headwise" else (name, {})
    keys = {"num_heads": 2, "head_dim": 8, **keys} | ({"num_features": 12} if name == "performer" else {})
    layers = {"num_layers": 2, "block": "pre_norm", "ffn": "ffn"}
    mixers = {"kind": {"kind": kind, **keys}, "attn": {"kind": "gqa", "num_heads": 2, "num_kv_heads": 2, "head_dim": 8}}
    around = {
        "position": "learned",
        "mixers": mixers,
        "encoder": {**layers, "mixer": "kind"},
        "decoder": {**layers, "mixer": "attn", "cross": "attn"},
    }
    contract(spec_text("ffn", "swiglu", {"intermediate_size": 24}, around))


@pytest.mark.parametrize("name", MIXERS)
def test_in_an_encoder_each_kind_keeps_the_contract(contract, name):
    contract(text(MIXERS[name], TWO, "learned", more=""))


def test_a_performer_with_many_features_is_nearly_bidirectional_attention():
    texts = [
        text("{kind: gqa, num_heads: 2, num_kv_heads: 2, head_dim: 8}"),
        text("{kind: performer, num_heads: 2, head_dim: 8, num_features: 4000}"),
    ]
    plain, performer = (build(loads_spec(each), device="cpu", dtype="float64", seed=0) for each in texts)
    with torch.no_grad():
        for tensor in plain.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel())) * 0.3)
        performer.load_state_dict(plain.state_dict())
        ids = torch.arange(LENGTH).unsqueeze(0)
        table = plain.get_submodule("embed_tokens").weight[:LENGTH]
        want, found = (model(ids)[0] - table for model in (plain, performer))
    assert float((found - want).square().mean().sqrt()) < 0.05 * float(want.square().mean().sqrt())


@pytest.mark.parametrize(
    ("sharing", "tables"), [("none", 2 * 2 * HEADS), ("headwise", 2 * 2), ("key_value", 2), ("layerwise", 1)]
)
def test_sharing_says_how_many_projections_of_the_text_two_layers_have(sharing, tables):
    params = expand(loads_spec(text(LINFORMER[sharing], TWO, more=""))).params()
    assert sum(param.elements for name, param in params.items() if "length_proj" in name) == tables * ROWS * LONGEST


def test_a_text_longer_than_the_projections_is_refused():
    model = build(loads_spec(text(LINFORMER["headwise"])), device="cpu", seed=0)
    with pytest.raises(ValueError, match="positions are learned up to max_position_embeddings, 40"):
        model(torch.zeros(1, LONGEST + 1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("stack", "position", "more", "message"),
    [
        (
            TWO.replace(", mask: bidirectional", ""),
            "none",
            "max_position_embeddings: 20",
            "takes the mask bidirectional",
        ),
        (TWO, "{kind: rope, theta: 100.0}", "max_position_embeddings: 20", "none can turn with its own"),
        (TWO, "none", "", "state max_position_embeddings"),
        (TWO, "alibi", "max_position_embeddings: 20", "alibi"),
    ],
)
@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_a_linformer_is_refused_where_it_can_not_be(stack, position, more, message, sharing):
    with pytest.raises((SpecError, GraphError), match=message):
        expand(loads_spec(tiny(LINFORMER[sharing], stack=stack, position=position, more=more)))


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_a_slope_on_scores_that_are_never_made_is_refused(name):
    with pytest.raises(SpecError, match="alibi"):
        loads_spec(tiny(MIXERS[name], position="alibi"))
