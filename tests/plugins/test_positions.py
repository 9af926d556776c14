"""Positions that are added to the embedding, and slopes on the scores: the contract, formulas written out, and mistakes."""

from __future__ import annotations

import math

import pytest

from archc.errors import GraphError, SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.graph.vocabulary import Builder
from archc.ops.attention import Attention
from archc.spec.load import loads_spec
from tests.plugins.specs import gqa, kda, mla, tiny

ROWS = "max_position_embeddings: 34"
"""As many as the contract's ragged rows reach, padding counted."""
LENGTH, EPS = 14, 1e-5
BARE = "{num_layers: 1, block: {kind: pre_norm, mixer_norm: false}, layers: mixer, final_norm: false}"
SLOPES = {
    1: (2**-8,),
    2: (2**-4, 2**-8),
    3: (2**-4, 2**-8, 2**-2),
    4: (2**-2, 2**-4, 2**-6, 2**-8),
    6: (2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3),
    8: tuple(2**-n for n in range(1, 9)),
    12: (*(2**-n for n in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5),
}
"""By the paper, and where the number is no power of two as BLOOM fills up."""


def slopes_of(text):
    (attention,) = {node.op for _, node in expand(loads_spec(text)).walk() if isinstance(node.op, Attention)}
    return attention.slopes


@pytest.mark.parametrize("heads", SLOPES)
def test_slopes_are_the_published_ones(heads):
    assert slopes_of(tiny(gqa(heads=heads, kv_heads=1), position="alibi")) == pytest.approx(SLOPES[heads], rel=1e-15)


def test_scaled_slopes_are_scaled_like_the_scores():
    mixer = gqa("softmax_scale: 0.25", kv_heads=1)
    assert slopes_of(tiny(mixer, position="{kind: alibi, scaled: true}")) == tuple(s / 4 for s in SLOPES[4])


def test_positions_without_weights_cost_none():
    plain = estimate(loads_spec(tiny(position="none"))).parameters.total
    for position in ("alibi", "sinusoidal"):
        assert estimate(loads_spec(tiny(position=position))).parameters.total == plain


@pytest.mark.parametrize("offset", [0, 2])
def test_a_learned_table_has_a_row_a_position_and_those_before(offset):
    text = tiny(position=f"{{kind: learned, offset: {offset}}}", more=ROWS)
    assert expand(loads_spec(text)).params()["embed_positions.weight"].shape == (34 + offset, 16)


def test_a_learned_table_needs_to_know_how_many_positions_there_are():
    with pytest.raises(SpecError, match=r":5:11: position: learned has a row a position, and nothing says how many"):
        loads_spec(tiny(position="learned"))
    with pytest.raises(GraphError, match="does not say how many; state max_position_embeddings"):
        Builder().learned_positions("rows", 16)


def test_a_learned_position_that_no_stack_uses_needs_no_length():
    loads_spec(
        tiny(position="learned", stack="{num_layers: 2, block: pre_norm, mixer: mixer, ffn: ffn, position: none}")
    )


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_what_is_added_to_the_embedding_is_no_mixers_own(position):
    with pytest.raises(SpecError, match=rf": mixers\.mixer\.position: {position} is added to the embedding"):
        loads_spec(tiny(gqa(f"position: {position}"), more=ROWS))


def test_sines_and_cosines_come_in_pairs():
    with pytest.raises(GraphError, match="come in pairs"):
        expand(loads_spec(tiny(position="sinusoidal", embedding="{hidden_size: 15, tie_word_embeddings: false}")))


def test_latent_attention_has_no_place_for_slopes():
    for text, where in (
        (tiny(mla(), position="alibi"), "5:11: position"),
        (tiny(mla("position: alibi")), "mixer.position"),
    ):
        with pytest.raises(SpecError, match=rf"{where}: alibi adds to the scores, and mixer, which is mla, has no"):
            loads_spec(text)
    expand(loads_spec(tiny(mla("position: none"), position="alibi")))
    # A spec that was changed in memory was not read, so the mixer itself objects, too.
    changed = loads_spec(tiny(mla())).model_copy(update={"position": loads_spec(tiny(position="alibi")).position})
    with pytest.raises(GraphError, match=r"layers\.0\.mixer: alibi adds to the scores, and mla has no place for it"):
        expand(changed)


CONTRACT = {
    "slopes": tiny(position="alibi"),
    "slopes of six heads": tiny(gqa(heads=6, kv_heads=3), position="alibi"),
    "scaled slopes": tiny(position="{kind: alibi, scaled: true}"),
    "slopes in a window": tiny(gqa("sliding_window: 5"), position="alibi"),
    "slopes in chunks": tiny(gqa("attention_chunk_size: 5"), position="alibi"),
    "slopes and sinks": tiny(gqa("sink_logits: true"), position="alibi"),
    "slopes and sinks under a soft cap in a window": tiny(
        gqa("sink_logits: true, attn_logit_softcapping: 0.7, sliding_window: 6"), position="alibi"
    ),
    "slopes of one mixer": tiny(gqa("position: alibi")),
    "slopes in a hybrid": tiny(
        stack="{num_layers: 2, block: pre_norm, mixer: mixer other, ffn: ffn}", position="alibi"
    ).replace("ffns:", f"  other: {kda()}\nffns:"),
    "sines": tiny(position="sinusoidal"),
    "a learned table": tiny(position="learned", more=ROWS),
    "a learned table with rows before it": tiny(position="{kind: learned, offset: 2}", more=ROWS),
    "a learned table and a norm on the embedding": tiny(
        position="learned", embedding="{hidden_size: 16, tie_word_embeddings: true, norm: true}", more=ROWS
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("text", CONTRACT.values(), ids=CONTRACT)
def test_a_position_keeps_the_contract(contract, text):
    contract(text)


@pytest.fixture
def drawn():
    pytest.importorskip("torch")
    from tests.plugins.test_references import drawn

    return drawn


@pytest.mark.torch
@pytest.mark.parametrize("scaled", ["false", "true"])
@pytest.mark.parametrize(
    ("keys", "reach"),
    [("", 99), ("sliding_window: 3", 3), ("sink_logits: true", 99), ("attn_logit_softcapping: 0.7", 99)],
)
def test_attention_with_slopes_is_the_formula(drawn, keys, reach, scaled):
    import torch

    from tests.plugins import reference
    from tests.plugins.test_references import weights_of, windowed

    position = f"{{kind: alibi, scaled: {scaled}}}"
    spec, model = drawn(tiny(gqa(keys, heads=6, kv_heads=3), stack=BARE, position=position, more="head: none"))
    ids = torch.arange(LENGTH).unsqueeze(0)
    with torch.no_grad():
        x = model.embed_tokens(ids)[0]
        got = model(ids)[0] - x
    kind = spec.mixers["mixer"].model_copy(update={"norm": spec.norm})
    factor = 8**-0.5 if scaled == "true" else 1.0
    want = reference.gqa(
        x,
        weights_of(model, "layers.0.mixer"),
        kind,
        theta=None,
        sees=windowed(reach),
        hidden_norm_eps=EPS,
        slopes=[slope * factor for slope in SLOPES[6]],
    )
    # Slopes are float32 by design.
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 * float(want.abs().max()))


EMBEDDED_ONLY = "{num_layers: 1, block: {kind: pre_norm, residual_multiplier: 0}, layers: ffn, final_norm: false}"


@pytest.mark.torch
@pytest.mark.parametrize("past", [0, 3, 100_000])
def test_sines_are_the_formula_at_any_position(drawn, past):
    import torch

    from archc.torch_backend.step import Step

    _, model = drawn(tiny(stack=EMBEDDED_ONLY, position="sinusoidal", more="head: none"))
    ids = torch.arange(LENGTH).unsqueeze(0)
    with torch.no_grad():
        got = model(ids, Step.at(past, LENGTH))[0] - model.embed_tokens(ids)[0]
    want = [
        [(math.sin, math.cos)[c % 2]((past + row) / 10000 ** ((c - c % 2) / 16)) for c in range(16)]
        for row in range(LENGTH)
    ]
    # The angle is float32, so its rounding grows with the position.
    torch.testing.assert_close(got, torch.tensor(want, dtype=got.dtype), rtol=0, atol=1e-6 + 2**-24 * past)


@pytest.mark.torch
def test_a_position_without_a_learned_row_is_an_error_and_not_another_row(drawn):
    import torch

    from archc.torch_backend.step import Step

    _, model = drawn(tiny(position="learned", more="max_position_embeddings: 10"))
    model(torch.zeros(1, 10, dtype=torch.int64))
    with pytest.raises(
        ValueError, match="position 10 has no row: positions are learned up to max_position_embeddings, 10"
    ):
        model(torch.zeros(1, 1, dtype=torch.int64), Step.at(10, 1))


@pytest.mark.torch
def test_positions_survive_a_build_on_the_meta_device_and_a_cast(drawn):
    import torch

    from archc.torch_backend.build import build, cast

    for position in ("sinusoidal", "alibi"):
        _, model = drawn(tiny(position=position))
        ids = torch.arange(LENGTH).unsqueeze(0)
        late = build(loads_spec(tiny(position=position))).to_empty(device="cpu")
        late.load_state_dict(model.state_dict())
        assert torch.equal(late(ids), cast(model, "float32")(ids))
        assert cast(late, "bfloat16")(ids).dtype == torch.bfloat16
