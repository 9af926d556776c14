"""The fast leaves give the values and the gradients of their readable twins."""

import pytest

torch = pytest.importorskip("torch")

from archc.torch_backend.leaves.softmax import attend, attend_spelled  # noqa: E402
from archc.torch_backend.operators.grouped_linear import grouped_linear  # noqa: E402
from archc.torch_backend.operators.short_conv import short_conv  # noqa: E402
from archc.torch_backend.twins.attention import dense, one_query_at_a_time  # noqa: E402
from archc.torch_backend.twins.linear_attention import conv_twin, delta_step, delta_twin  # noqa: E402
from tests.torch_backend.examples import FFNS, MIXERS, TINY, assert_close, ids_for, lively, small_spec  # noqa: E402

pytestmark = pytest.mark.torch

TWIN_OF_TWIN = "needed"


def logits_and_gradients(model, seq):
    logits = model(ids_for(model, 2, seq))
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
    (logits * weights).sum().backward()
    return logits.detach(), {name: weight.grad for name, weight in model.named_parameters()}


def check_against_twin(spec, seq=23, pairs="dense", skip=()):
    logits, gradients = logits_and_gradients(lively(spec), seq)
    expected, expected_gradients = logits_and_gradients(lively(spec, twin=pairs), seq)
    assert_close(logits, expected)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        if ".indexer." in name:
            # It only chooses.
            assert gradient is None
            assert expected_gradients[name] is None
            continue
        assert gradient is not None, f"{name} has no gradient"
        if not name.endswith(skip):
            assert expected_gradients[name].abs().max() > 1e-3, f"{name}: the gradient is too small to judge"
            assert_close(gradient, expected_gradients[name], 3e-5)


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "gqa window of 1"])
def test_a_mixer_gives_what_its_twin_gives(mixer):
    check_against_twin(small_spec(MIXERS[mixer]))


def test_a_window_of_one_token_gives_what_its_twin_gives():
    # A token that sees itself only has a score without influence, so queries and keys have gradients of rounding only.
    check_against_twin(small_spec(MIXERS["gqa window of 1"]), skip=("q_proj.weight", "k_proj.weight"))


@pytest.mark.parametrize("ffn", FFNS)
def test_a_feed_forward_gives_what_its_twin_gives(ffn):
    check_against_twin(small_spec(ffn=FFNS[ffn]), seq=11)


@pytest.mark.parametrize("spec", TINY)
def test_a_whole_model_gives_what_its_twins_give(spec):
    logits, _ = logits_and_gradients(lively(spec), 29)
    expected, _ = logits_and_gradients(lively(spec, twin="dense"), 29)
    assert_close(logits, expected, 3e-5)


@pytest.mark.parametrize(
    "mixer", ["gqa", "gqa sinks in a window", "gqa soft cap", "mla", "kda", "gated_deltanet", "mamba2 groups"]
)
def test_both_twins_agree(mixer):
    logits, _ = logits_and_gradients(lively(small_spec(MIXERS[mixer]), twin="needed"), 13)
    expected, _ = logits_and_gradients(lively(small_spec(MIXERS[mixer]), twin="dense"), 13)
    assert_close(logits, expected)


@pytest.mark.parametrize(
    "words", [{}, {"sinks_N": True}, {"soft_cap": 2.0}, {"sinks_N": True, "soft_cap": 2.0}], ids=str
)
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "masked"])
def test_attention_agrees_in_all_its_spellings(masked, words):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 9, 8, generator=draw) for heads in (4, 2, 2))
    v = v[..., :6]
    words = {**words, "scale": 0.3}
    if "sinks_N" in words:
        words["sinks_N"] = torch.randn(4, generator=draw)
    mask = torch.rand(2, 1, 9, 9, generator=draw) < 0.5
    words |= {"mask": mask | torch.eye(9, dtype=torch.bool)} if masked else {"causal": True}
    expected = dense(q, k, v, **words)
    for spelling in (attend, attend_spelled, one_query_at_a_time):
        assert_close(spelling(q, k, v, **words), expected, 2e-6)


@pytest.mark.parametrize("per_head", [False, True], ids=["decay a channel", "decay a head"])
def test_one_token_of_the_delta_rule_is_one_step_of_the_chunked_twin(per_head):
    draw = torch.Generator().manual_seed(0)
    q, k, v, state = (
        torch.randn(shape, generator=draw) for shape in ((2, 1, 3, 8),) * 2 + ((2, 1, 3, 6), (2, 3, 8, 6))
    )
    decay = -torch.rand((2, 1, 3) if per_head else (2, 1, 3, 8), generator=draw)
    beta = torch.rand(2, 1, 3, generator=draw)
    # A second token that neither decays nor writes leaves the state alone, and makes the twin take its chunked form.
    idle = [torch.cat((x, torch.zeros_like(x)), 1) for x in (q, k, v, decay, beta)]
    expected, expected_state = delta_twin("dense")(*idle, state, scale=0.4)
    out, final = delta_step(q, k, v, decay, beta, state, scale=0.4)
    assert_close(out, expected[:, :1])
    assert_close(final, expected_state)


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("kernel", [2, 4])
def test_the_short_convolution_and_its_backward_are_those_of_the_twin(kernel, silu):
    draw = torch.Generator().manual_seed(kernel)
    shapes = ((2, 7, 5), (2, kernel - 1, 5), (5, kernel))
    inputs = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    expected = conv_twin(*inputs)
    expected = torch.nn.functional.silu(expected) if silu else expected
    got = short_conv(*inputs, silu)
    assert_close(got, expected, 1e-12)
    weights = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    pairs = zip(torch.autograd.grad(got, inputs, weights), torch.autograd.grad(expected, inputs, weights), strict=True)
    for gradient, expected_gradient in pairs:
        assert_close(gradient, expected_gradient, 1e-12)


@pytest.mark.parametrize("counts", [[3, 0, 4, 1], [0, 0, 8, 0], [0, 0, 0, 0]], ids=str)
def test_the_grouped_product_and_its_backward_are_those_of_a_loop(counts):
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(sum(counts), 6, generator=draw, dtype=torch.float64).requires_grad_()
    weight = torch.randn(4, 5, 6, generator=draw, dtype=torch.float64).requires_grad_()
    expected = torch.cat([part @ matrix.t() for part, matrix in zip(rows.split(counts), weight, strict=True)])
    got = grouped_linear(rows, weight, torch.tensor(counts).cumsum(0), False)
    assert_close(got, expected, 1e-12)
    weights = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    wanted = (rows, weight)
    pairs = zip(torch.autograd.grad(got, wanted, weights), torch.autograd.grad(expected, wanted, weights), strict=True)
    for gradient, expected_gradient in pairs:
        assert_close(gradient, expected_gradient, 1e-12)


@pytest.mark.parametrize("operator", ["grouped_linear", "grouped_outer", "short_conv", "short_conv_backward"])
def test_operators_keep_the_contract_of_torch_library(operator):
    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(3, 5, 4, requires_grad=True)
    ends = torch.tensor([2, 2, 6])
    z, past, taps = (torch.randn(*shape, requires_grad=True) for shape in ((2, 7, 5), (2, 3, 5), (5, 4)))
    arguments = {
        "grouped_linear": (x, weight, ends, False),
        "grouped_outer": (torch.randn(6, 5), x.detach(), ends),
        "short_conv": (z, past, taps, True),
        "short_conv_backward": (torch.randn(2, 7, 5), *(t.detach() for t in (z, past, taps)), True),
    }
    torch.library.opcheck(getattr(torch.ops.archc, operator).default, arguments[operator])
