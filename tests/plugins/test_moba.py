"""Mixture of block attention: the contract, the formula written out, and the attentions that it becomes at its ends."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from archc.errors import ArchcError, SpecError  # noqa: E402
from archc.estimation.estimate import estimate  # noqa: E402
from archc.expansion import expand  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.torch_backend.build import build, new_cache  # noqa: E402
from archc.torch_backend.step import Step  # noqa: E402
from tests.plugins.specs import gqa, tiny  # noqa: E402
from tests.plugins.test_nsa import LENGTH, softmax_over, turned  # noqa: E402
from tests.plugins.test_references import BARE, drawn, weights_of  # noqa: E402

pytestmark = pytest.mark.torch


def moba(keys="", *, block=4, topk=3, kv_heads=2):
    """A moba with more keys."""
    heads = f"num_heads: 4, num_kv_heads: {kv_heads}, head_dim: 8"
    return f"{{kind: moba, {heads}, block_size: {block}, topk: {topk}{', ' if keys else ''}{keys}}}"


MIXERS = {
    "three of four": moba(),
    "two of five": moba(block=5, topk=2),
    "its own only": moba(topk=1),
    "blocks of one": moba(block=1, topk=6),
    "more blocks than there are": moba(topk=40),
    "one block for all": moba(block=99),
    "biases and a head of keys for each": moba("qkv_bias: true", kv_heads=4),
    "one head of keys": moba(kv_heads=1),
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_mixture_of_block_attention_keeps_the_contract(contract, mixer):
    contract(tiny(mixer))


def written_out(x, weights, kind, theta):
    """(seq, hidden) -> same, in the words of the paper."""
    d, group = kind.head_dim, kind.num_heads // kind.num_kv_heads

    def heads(name):
        y = x @ weights[f"{name}_proj.weight"].T + weights.get(f"{name}_proj.bias", 0)
        return y.view(len(x), -1, d)

    q, k = ([[turned(head, t, theta) for head in row] for t, row in enumerate(heads(name))] for name in "qk")
    v, out = heads("v"), []
    for t in range(len(x)):
        row = []
        for head in range(kind.num_heads):
            own, g = t // kind.block_size, head // group
            blocks = [range(j * kind.block_size, (j + 1) * kind.block_size) for j in range(own)]
            fits = [float(q[t][head] @ torch.stack([k[s][g] for s in block]).mean(0)) for block in blocks]
            best = sorted(range(own), key=lambda j: -fits[j])[: kind.topk - 1]
            read = [s for s in range(t + 1) if s // kind.block_size in {own, *best}]
            row.append(softmax_over(q[t][head], [k[s][g] for s in read], [v[s, g] for s in read])[1])
        out.append(torch.cat(row))
    return torch.stack(out) @ weights["o_proj.weight"].T


@pytest.mark.parametrize("theta", [None, 100.0], ids=["without rope", "with rope"])
@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_mixture_of_block_attention_is_the_formula(mixer, theta):
    position = "none" if theta is None else f"{{kind: rope, theta: {theta}}}"
    spec, model = drawn(tiny(mixer, stack=BARE % "mixer", position=position, more="head: none"))
    ids = torch.arange(LENGTH).unsqueeze(0)
    with torch.no_grad():
        x = model.embed_tokens(ids)[0]
        got = model(ids)[0] - x
    want = written_out(x, weights_of(model, "layers.0.mixer"), spec.mixers["mixer"], theta)
    # Rope's table is float32 by design.
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 * float(want.abs().max()))


@pytest.mark.parametrize(
    ("mixer", "other"),
    [(moba(topk=7), gqa()), (moba(block=LENGTH), gqa()), (moba(topk=1), gqa("attention_chunk_size: 4"))],
    ids=["all blocks are full attention", "one block is full attention", "its own only is attention in chunks"],
)
def test_at_its_ends_it_is_an_attention_without_a_choice(mixer, other):
    ids = torch.arange(LENGTH).unsqueeze(0)
    model, like = (drawn(tiny(each))[1] for each in (mixer, other))
    like.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(ids), like(ids), rtol=0, atol=1e-10)


def test_a_step_reads_no_key_or_value_of_a_block_that_is_not_chosen():
    text = tiny(moba(topk=1), stack="{num_layers: 1, block: pre_norm, mixer: mixer, ffn: ffn}")
    model = build(loads_spec(text), device="cpu", seed=0)
    ids = torch.arange(LENGTH).unsqueeze(0)
    cache = new_cache(model, batch=1, max_model_len=LENGTH)
    with torch.no_grad():
        model(ids[:, :-1], Step.at(0, LENGTH - 1), cache)
        spoilt = {name: tensor.clone() for name, tensor in cache.items()}
        for ending in ("key", "value"):
            spoilt[f"layers.0.mixer.attention.{ending}"][:, :, :24] = float("nan")
        want = model(ids[:, -1:], Step.at(LENGTH - 1, 1), cache)
        got = model(ids[:, -1:], Step.at(LENGTH - 1, 1), spoilt)
    assert torch.equal(got, want)


@pytest.mark.parametrize("slab", [1, 700, 5000])
def test_slices_of_a_prompt_give_what_the_whole_of_it_gives(monkeypatch, slab):
    model = drawn(tiny(moba()))[1]
    ids = torch.arange(2 * LENGTH).view(2, -1) % 40
    with torch.no_grad():
        whole = model(ids)
        monkeypatch.setattr("archc.torch_backend.leaves.blocks.SLAB_ELEMENTS", slab)
        torch.testing.assert_close(model(ids), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tokens", [1, 4, 5, 8, 21, 64])
def test_every_byte_of_the_estimate_is_in_a_tensor(tokens):
    graph = expand(loads_spec(tiny(moba(block=5))))
    cache = estimate(graph, dtype="float32", max_model_len=tokens).cache
    tensors = new_cache(build(graph, device="cpu"), batch=1, max_model_len=tokens)
    assert cache.allocated_bytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    a_row = 2 * 2 * 8 * 4
    assert cache.used_bytes == a_row * (2 * tokens + tokens // 5)


def test_heads_that_do_not_divide_and_a_cache_that_forgets_are_refused():
    with pytest.raises(SpecError, match="should divide num_heads, 4"):
        loads_spec(tiny(moba(kv_heads=3)))
    with pytest.raises(ArchcError, match="chooses among the blocks of the whole text"):
        expand(loads_spec(tiny(moba(), more="cache: {policy: window, window: 8}")))
    with pytest.raises(ArchcError, match="alibi"):
        expand(loads_spec(tiny(moba(), position="alibi")))
