"""A map times its values is what the layer gives, for every kind; shares sum to one; what no mask lets through is zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from archc import registry
from archc.attention_maps.maps import AttentionMap, attention_maps, place_of, statistics
from archc.attention_maps.readers import has_map
from archc.errors import ArchcError
from archc.spec.load import loads_spec
from archc.testing.placing import spec_text
from archc.torch_backend.build import build, graph_of
from tests.plugins.kinds import EXAMPLES, Example, example

pytestmark = pytest.mark.torch

GQA = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
MHA = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 8}
FURTHER: dict[str, tuple[str, Example]] = {
    "a window": ("mixer.gqa", example(**GQA, sliding_window=4)),
    "sinks": ("mixer.gqa", example(**GQA, sink_logits=True)),
    "chunks": ("mixer.gqa", example(**GQA, attention_chunk_size=5)),
    "soft-capped scores": ("mixer.gqa", example(**GQA, attn_logit_softcapping=0.5)),
    "slopes": ("mixer.gqa", Example(GQA, {"position": "alibi"})),
    "a bias by distance": (
        "mixer.gqa",
        Example(MHA, {"position": {"kind": "relative_bias", "num_buckets": 8, "max_distance": 20}}),
    ),
    "an encoder": ("mixer.gqa", Example(GQA, {"encoder": {}})),
    "an encoder with slopes": ("mixer.gqa", Example(GQA, {"encoder": {}, "position": "alibi"})),
    "disentangled positions": ("position.disentangled", EXAMPLES["position.disentangled"]),
    "a decoder and its encoder": ("mixer.gqa", Example(GQA, {"encoder": {}, "decoder": {}})),
    "scores of two kinds over an encoder": (
        "mixer.general_attention",
        Example(
            {"num_heads": 2, "head_dim": 8, "score": {"kind": "additive", "hidden_size": 6}},
            {"position": "none", "encoder": {}, "decoder": {}},
        ),
    ),
    "a performer that sees everything": (
        "mixer.performer",
        replace(EXAMPLES["mixer.performer"], around={"encoder": {}}),
    ),
    "blocks with drawn ones": (
        "mixer.local_global",
        Example(
            {"num_heads": 2, "head_dim": 8, "block_size": 2, "num_random_blocks": 1, "random_seed": 3},
            {"position": "learned"},
        ),
    ),
    "keys and values of an earlier layer": (
        "mixer.gqa",
        Example(
            {},
            {
                "mixers": {
                    "own": {"kind": "gqa", **GQA},
                    "reuse": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "kv_from": "own"},
                },
                "stack": {"num_layers": 2, "block": "pre_norm", "mixer": "own reuse", "ffn": "ffn"},
            },
        ),
    ),
}
CASES = {
    **{name: (name, kind) for name, kind in EXAMPLES.items() if name.startswith(("mixer.", "score."))},
    **FURTHER,
}
SHARES = {
    "attention",
    "shared_attention",
    "bidirectional_attention",
    "cross_attention",
    "disentangled_attention",
    "local_global_attention",
    "block_sparse_attention",
    "latent_attention",
    "sparse_latent_attention",
    "mixture_of_block_attention",
    "feature_attention",
    "bidirectional_feature_attention",
    "attention_gru",
}
"""Ops whose rows are shares of what is read: they sum to one, or to less where a sink takes the rest."""


def maps_of(name: str, kind: Example, tokens: int = 19, **choices: Any) -> list[AttentionMap]:
    family, _, short = name.partition(".")
    model = build(loads_spec(spec_text(family, short, kind.keys, kind.around)), device="cpu", seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            # As wide as what is trained: maps of weights as they are drawn are all but flat.
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    graph = graph_of(model)
    ids = torch.randint(0, graph.vocab_size or 2, (1, tokens), generator=generator)
    given = {"encoder_input_ids": torch.randint(0, 37, (1, 13), generator=generator)} if graph.reads_encoder else {}
    return attention_maps(model, ids, keeps_heads=True, **given, **choices)


@pytest.mark.parametrize("name", CASES)
def test_a_map_times_its_values_is_what_the_layer_gives(name: str):
    found = maps_of(*CASES[name])
    assert found
    for one in found:
        assert one.difference < 2e-5, one.title
        assert one.weights is not None
        assert one.weights.isfinite().all()
        assert one.weights.abs().max() > 0
        assert torch.allclose(one.mean, one.weights.mean(0))
        assert len(one.heads) == len(one.weights)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_shares_sum_to_one_and_a_causal_row_reads_nothing_later(name: str):
    has_sinks = name == "sinks"
    for one in maps_of(*CASES[name]):
        assert one.weights is not None
        if one.op_name in SHARES:
            assert one.weights.min() > -1e-6
            total = one.weights.sum(-1)
            assert total.max() < 1 + 1e-4
            assert has_sinks or total.min() > 1 - 1e-4
        is_causal = not one.reads_source and one.stack != "encoder" and one.spans is None
        if is_causal and one.op_name.startswith(("attention", "latent", "linear", "state", "selective", "mixture")):
            assert one.weights.triu(1).abs().max() < 1e-6


def test_every_installed_mixer_is_among_the_cases():
    assert {f"mixer.{name}" for name in registry.names("mixer")} <= CASES.keys()


def test_a_window_is_a_band():
    [one, _] = maps_of(*CASES["a window"])
    assert one.weights is not None
    assert one.weights.tril(-4).abs().max() == 0
    assert one.weights.tril().triu(-3).gt(0).sum() == 4 * (19 * 4 - 6)


def test_a_prefix_is_a_square_that_sees_itself():
    found = maps_of("mixer.gqa", Example(GQA, {"stack": {"mask": "prefix"}}), prefix_length=5)
    for one in found:
        assert one.weights is not None
        assert one.weights[:, :5, :5].min() > 0
        assert one.weights[:, :5, 5:].abs().max() == 0
        assert one.weights[:, 5:, 5:].triu(1).abs().max() == 0


def test_a_sink_takes_what_a_row_lacks():
    for one in maps_of(*CASES["sinks"]):
        assert one.weights is not None
        # The sink's logit is 0 and there is one other key.
        assert (one.weights.sum(-1) < 1).all()


def test_a_decoder_reads_the_encoders_tokens_and_its_own():
    found = maps_of(*CASES["a decoder and its encoder"])
    shapes = {(one.stack, one.reads_source): tuple(one.mean.shape) for one in found}
    assert shapes == {("encoder", False): (13, 13), ("decoder", False): (19, 19), ("decoder", True): (19, 13)}
    assert all((head.distance is None) == one.reads_source for one in found for head in one.heads)


def test_compressed_blocks_are_columns_of_several_tokens():
    found = maps_of(*CASES["mixer.nsa"])
    blocks = next(one for one in found if one.branch == "compressed")
    assert blocks.spans is not None
    assert blocks.spans[:2] == ((0, 4), (2, 6))
    assert blocks.mean.shape == (19, 8)
    assert blocks.mean[2].abs().max() == 0, "no block is complete yet"
    assert {one.branch for one in found} == {"selected", "compressed", ""}


def test_a_gru_reads_back_in_one_direction_and_ahead_in_the_other():
    first, second = maps_of(*CASES["mixer.gru"])[:2]
    assert (first.branch, second.branch) == ("", "backward")
    assert first.weights is not None
    assert second.weights is not None
    assert first.weights.triu(1).abs().max() == 0
    assert second.weights.tril(-1).abs().max() == 0
    # What a state lacks to one is the state before the text, which is zero.
    assert first.weights.sum(-1).max() < 1 + 1e-5
    assert first.weights[:, 0].sum(-1).max() < 0.999


def test_a_layer_is_chosen_by_number_and_stack():
    name, kind = CASES["a decoder and its encoder"]
    both = maps_of(name, kind, layer=(None, 1))
    assert {(one.stack, one.layer) for one in both} == {("encoder", 1), ("decoder", 1)}
    assert {one.stack for one in maps_of(name, kind, layer=("encoder", 0))} == {"encoder"}
    with pytest.raises(ArchcError, match=r"has no map in that layer; those with one: decoder.0, decoder.1, encoder.0"):
        maps_of(name, kind, layer=(None, 9))


def test_a_long_text_is_refused_before_anything_is_computed():
    with pytest.raises(ArchcError, match="the text has 257 tokens; maps are drawn of 256 at most"):
        maps_of("mixer.gqa", example(**GQA), 257)


def test_statistics_of_maps_that_are_known():
    uniform = torch.full((1, 4, 4), 0.25)
    [head] = statistics(uniform)
    assert head.entropy == pytest.approx(torch.log(torch.tensor(4.0)).item())
    assert head.first == pytest.approx(0.25)
    assert head.distance == pytest.approx(20 / 16)
    [head] = statistics(torch.eye(4).unsqueeze(0))
    assert (head.entropy, head.distance, head.first) == (0.0, 0.0, 0.25)
    [head] = statistics(torch.tensor([[[0.0, 0.0], [-1.0, 1.0]]]))
    assert head.first == pytest.approx(0.5), "a row that reads nothing counts nowhere, a negative weight by its size"
    [head] = statistics(torch.ones(1, 4, 1), ((0, 3),))
    assert head.distance == pytest.approx((1 + 0 + 1 + 2) / 4)


def test_places_of_paths():
    assert place_of("layers.3.mixer.attention") == ("", 3)
    assert place_of("decoder.layers.12.cross.attention") == ("decoder", 12)
    assert place_of("embed_tokens") == ("", None)


def test_an_op_that_stays_within_a_token_has_no_map():
    graph = graph_of(build(loads_spec(spec_text("mixer", "gqa", GQA))))
    assert {node.op.op_name for _, node in graph.walk() if has_map(node.op)} == {"attention"}
