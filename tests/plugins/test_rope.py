"""Frequencies and attention factors of rope scalings against transformers, and turning against complex numbers."""

from __future__ import annotations

import warnings

import pytest

from archc.errors import GraphError
from archc.expansion import expand
from archc.graph.lockfile import to_text
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, SEQ
from archc.ir.values import TensorType
from archc.ops.rotary import RopeTable
from archc.spec.load import loads_spec
from tests.plugins.specs import gqa, mla, tiny

LLAMA3 = {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"factor": 40.0, "original_max_position_embeddings": 4096}
LN_40 = 3.6888794541139363
SCALINGS = {
    "linear": ("linear", {"factor": 4.0}, 1e4, 64),
    "linear by 1": ("linear", {"factor": 1.0}, 1e4, 64),
    "llama3": ("llama3", LLAMA3, 5e5, 128),
    "llama3 by 32": ("llama3", {**LLAMA3, "factor": 32.0}, 5e5, 64),
    "llama3 with other corners": ("llama3", {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 3.0}, 1e4, 64),
    "yarn": ("yarn", YARN, 1e4, 64),
    "yarn by 1": ("yarn", {**YARN, "factor": 1.0}, 1e4, 64),
    "yarn between whole channels": ("yarn", {**YARN, "truncate": False}, 1.5e5, 64),
    "yarn with betas": ("yarn", {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}, 1e6, 128),
    "yarn with its factor": ("yarn", {**YARN, "attention_factor": 0.75}, 1e4, 64),
    "yarn as deepseek": ("yarn", {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, 1e4, 64),
    "yarn with two magnitudes": ("yarn", {**YARN, "mscale": 0.707, "mscale_all_dim": 1.3}, 1e4, 64),
    "yarn with one magnitude": ("yarn", {**YARN, "mscale": 0.707}, 1e4, 64),
    "yarn over a short text": ("yarn", {**YARN, "original_max_position_embeddings": 32}, 1e4, 16),
    "yarn over a short text, between": (
        "yarn",
        {**YARN, "original_max_position_embeddings": 32, "truncate": False},
        1e4,
        16,
    ),
}


def table(position, head_dim):
    """The rope table that a model with this position places."""
    text = tiny(gqa().replace("head_dim: 8", f"head_dim: {head_dim}"), position=position)
    (op,) = [node.op for node in expand(loads_spec(text)).root.nodes() if isinstance(node.op, RopeTable)]
    return op


def position(theta, scaling):
    keys = ", ".join(f"{key}: {str(value).lower()}" for key, value in scaling.items())
    return f"{{kind: rope, theta: {theta}, scaling: {{{keys}}}}}"


@pytest.mark.torch
@pytest.mark.parametrize(("name", "numbers", "theta", "head_dim"), SCALINGS.values(), ids=SCALINGS)
def test_a_scaling_has_the_frequencies_and_the_factor_of_transformers(name, numbers, theta, head_dim):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("transformers", minversion="5.0")
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        length = int(numbers.get("original_max_position_embeddings", 4096) * numbers["factor"])
        config = LlamaConfig(
            hidden_size=head_dim * 2,
            num_attention_heads=2,
            head_dim=head_dim,
            max_position_embeddings=length,
            rope_parameters={"rope_type": name, "rope_theta": theta, **numbers},
        )
        frequencies, factor = ROPE_INIT_FUNCTIONS[name](config, "cpu")
    got = table(position(theta, {"kind": name, **numbers}), head_dim)
    assert got.factor == pytest.approx(factor, rel=1e-12)
    assert got.frequencies == pytest.approx(frequencies.tolist(), rel=2e-6)


def test_without_a_scaling_frequencies_fall_by_powers_of_theta():
    got = table("{kind: rope, theta: 10000.0}", 8)
    assert got.frequencies == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-12)
    assert got.factor == 1.0


def test_a_partial_rope_has_the_frequencies_of_its_own_width():
    got = table("{kind: rope, theta: 10000.0, partial_rotary_factor: 0.25}", 16)
    assert got.frequencies == pytest.approx([1.0, 0.01], rel=1e-12)


@pytest.mark.parametrize(("mscale_all_dim", "root"), [(None, 1.0), (1.0, 0.1 * LN_40 + 1), (0.5, 0.05 * LN_40 + 1)])
def test_the_softmax_scale_of_latent_attention_has_the_square_of_mscale_all_dim(mscale_all_dim, root):
    numbers = {**YARN, "mscale": 1.0} | ({} if mscale_all_dim is None else {"mscale_all_dim": mscale_all_dim})
    graph = expand(loads_spec(tiny(mla(), position=position(1e4, {"kind": "yarn", **numbers}))))
    (scale,) = {node.op.scale for _, node in graph.walk() if node.op.op_name == "latent_attention"}
    assert scale == pytest.approx(12**-0.5 * root**2, rel=1e-9)


def rotated(rope, **keys):
    """The op that a position places on two heads of 8 channels."""
    g = Builder()
    rope.rotate(g, g.add_input("x", TensorType((BATCH, SEQ, 16))), head_dim=8, **keys)
    return list(g.root.nodes())[-1].op


def test_trailing_says_nothing_new_where_the_mixer_turns_its_last_channels_and_is_refused_elsewhere():
    plain, stated = (
        expand(loads_spec(tiny(mla(), position=f"{{kind: rope, theta: 100.0{more}}}")))
        for more in ("", ", trailing: true")
    )
    assert to_text(plain) == to_text(stated)
    rope = loads_spec(tiny(position="{kind: rope, theta: 100.0, trailing: true}")).position
    for dim, offset in ((4, 0), (4, 3), (4, None)):
        with pytest.raises(GraphError, match="turns channels that are not its last ones: trailing has no place here"):
            rotated(rope, dim=dim, offset=offset)
    assert rotated(rope, dim=4, offset=4).offset == 4


def test_trailing_among_channels_that_all_turn_is_refused():
    spec = loads_spec(tiny(gqa(), position="{kind: rope, theta: 100.0, trailing: true}"))
    with pytest.raises(GraphError, match="trailing has no effect while partial_rotary_factor is 1"):
        expand(spec)


def test_a_share_of_the_channels_has_no_place_where_the_mixer_says_which_turn():
    spec = loads_spec(tiny(mla(), position="{kind: rope, theta: 100.0, partial_rotary_factor: 0.5}"))
    with pytest.raises(GraphError, match="says which channels turn: partial_rotary_factor has no place here"):
        expand(spec)


@pytest.mark.torch
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("dim", "offset"), [(8, 0), (4, 0), (4, 4), (2, 3)])
def test_pairs_turn_as_complex_numbers_and_other_channels_stay(style, dim, offset):
    torch = pytest.importorskip("torch")
    from archc.torch_backend.leaves.rotary import rotate

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, 2 * 8, generator=draw, dtype=torch.float64)
    angles = torch.randn(1, 5, dim // 2, generator=draw, dtype=torch.float64)
    got = rotate(x, angles.cos(), angles.sin(), head_dim=8, dim=dim, offset=offset, style=style).unflatten(-1, (2, 8))
    want = x.unflatten(-1, (2, 8)).clone()
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if style == "half" else (2 * i, 2 * i + 1)
        turned = torch.complex(want[..., offset + a], want[..., offset + b]) * torch.exp(1j * angles[..., i : i + 1])
        want[..., offset + a], want[..., offset + b] = turned.real, turned.imag
    torch.testing.assert_close(got, want)
