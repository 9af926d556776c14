"""Rope scalings that depend on the length a model is run for: chosen once, by ``max_position_embeddings``."""

from __future__ import annotations

import warnings

import pytest

from archc.errors import GraphError, SpecError
from archc.expansion import expand
from archc.ops.rotary import RopeTable
from archc.spec.load import load_spec, loads_spec
from tests.plugins.specs import gqa, mla, tiny

DYNAMIC = "{kind: dynamic, factor: 4.0, original_max_position_embeddings: 64}"
LISTS = "short_factor: [1.0, 1.1, 1.3, 1.7], long_factor: [1.0, 1.5, 2.0, 4.0]"
LONGROPE = f"{{kind: longrope, factor: 8.0, original_max_position_embeddings: 16, {LISTS}}}"


def text(scaling, length=None, mixer=None):
    more = "" if length is None else f"max_position_embeddings: {length}"
    return tiny(mixer or gqa(), position=f"{{kind: rope, theta: 100.0, scaling: {scaling}}}", more=more)


def table(scaling, length):
    """The rope table of a model made for so many tokens."""
    (op,) = [
        node.op for node in expand(loads_spec(text(scaling, length))).root.nodes() if isinstance(node.op, RopeTable)
    ]
    return op


def transformers_s(rope_type, length, seq_len, **numbers):
    """(frequencies, factor on cos and sin) of transformers for a call of so many tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("transformers", minversion="5.0")
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rope = {"rope_type": rope_type, "rope_theta": 100.0, **numbers}
        config = LlamaConfig(
            hidden_size=32, num_attention_heads=4, head_dim=8, max_position_embeddings=length, rope_parameters=rope
        )
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope_type](config, "cpu", seq_len=seq_len)
    return frequencies.tolist(), factor


@pytest.mark.torch
@pytest.mark.parametrize("length", [32, 64, 65, 128, 256, 1000])
def test_dynamic_has_the_base_that_transformers_has_for_a_text_of_that_length(length):
    # The trained length is transformers' max_position_embeddings.
    want, factor = transformers_s("dynamic", 64, length, factor=4.0)
    got = table(DYNAMIC, length)
    assert got.frequencies == pytest.approx(want, rel=2e-6)
    assert got.factor == factor == 1.0


def test_dynamic_without_a_length_reaches_as_far_as_its_factor():
    assert table(DYNAMIC, None) == table(DYNAMIC, 256)
    assert table(DYNAMIC, 64).frequencies == pytest.approx([1.0, 100**-0.25, 0.1, 100**-0.75])


@pytest.mark.torch
@pytest.mark.parametrize("length", [8, 16, 17, 128])
def test_longrope_has_the_list_and_the_factor_that_transformers_has_for_a_text_of_that_length(length):
    lists = {"short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 1.5, 2.0, 4.0]}
    numbers = {"factor": 8.0, "original_max_position_embeddings": 16}
    want, factor = transformers_s("longrope", 128, length, **numbers, **lists)
    got = table(LONGROPE, length)
    assert got.frequencies == pytest.approx(want, rel=2e-6)
    assert got.factor == pytest.approx(factor, rel=1e-12)


def test_longrope_without_a_length_is_long_where_its_factor_says_so():
    assert table(LONGROPE, None) == table(LONGROPE, 128)
    assert table(LONGROPE.replace("factor: 8.0", "factor: 1.0"), None).factor == 1.0
    assert table(LONGROPE.replace("factor: 8.0", "factor: 1.0"), None).frequencies == table(LONGROPE, 16).frequencies


@pytest.mark.torch
@pytest.mark.parametrize("length", [None, 16, 1000])
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_a_scaling_by_length_keeps_the_contract(contract, scaling, length):
    contract(text(scaling, length))


@pytest.mark.torch
def test_dynamic_keeps_the_contract_under_latent_attention(contract):
    contract(text(DYNAMIC, 128, mla()))


def test_longrope_s_lists_are_as_long_as_each_other_and_as_the_pairs_that_turn():
    with pytest.raises(SpecError, match="long_factor: should have as many numbers as short_factor, 4 \\(found 3\\)"):
        loads_spec(text(LONGROPE.replace(", 4.0]", "]")))
    with pytest.raises(GraphError, match="a number for each of the 2 channel pairs that turn \\(found 4\\)"):
        expand(loads_spec(text(LONGROPE, 128).replace("theta: 100.0", "theta: 100.0, partial_rotary_factor: 0.5")))
    with pytest.raises(SpecError, match="short_factor"):
        loads_spec(text(LONGROPE.replace("[1.0, 1.1, 1.3, 1.7]", "[]").replace("[1.0, 1.5, 2.0, 4.0]", "[]")))


def test_a_single_turning_pair_has_frequency_one_under_dynamic():
    narrow = text(DYNAMIC, 256).replace("theta: 100.0", "theta: 100.0, partial_rotary_factor: 0.25")
    (op,) = [node.op for node in expand(loads_spec(narrow)).root.nodes() if isinstance(node.op, RopeTable)]
    assert op.frequencies == (1.0,)


def test_a_length_set_on_the_command_line_chooses_the_list():
    def frequencies(*changes):
        graph = expand(load_spec("tiny-phi-3-longrope", list(changes)))
        (op,) = [node.op for node in graph.root.nodes() if isinstance(node.op, RopeTable)]
        return op.frequencies

    short, long = frequencies("max_position_embeddings=16"), frequencies()
    assert [a / b for a, b in zip(short, long, strict=True)] == pytest.approx(
        [1.0, 1.5 / 1.1, 2.0 / 1.3, 4.0 / 1.7, 4.5 / 1.9, 5.0 / 2.0, 5.5 / 2.1, 6.0 / 2.2]
    )
