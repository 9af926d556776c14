"""Scores: what each kind computes, and that a package can bring its own."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from archc import registry
from archc.errors import GraphError, SpecError
from archc.expansion import expand
from archc.families import Score
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.score import ScoreForm
from archc.spec.load import loads_spec
from archc.spec.slots import Slot
from archc.testing.placing import spec_text

torch = pytest.importorskip("torch")

import archc  # noqa: E402
from archc.testing import check_kind  # noqa: E402
from archc.torch_backend.leaves import score as leaf  # noqa: E402
from archc.torch_backend.leaves.score import attend_scored  # noqa: E402

pytestmark = pytest.mark.torch

HEADS, QUERIES, KEYS, WIDTH = 3, 2, 50, 5


def form_of(name: str, **keys: Any) -> ScoreForm:
    score: Any = Slot("score").load(name).model_validate(keys)
    return score.form(WIDTH)


def drawn(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def spelled(score: Any, weigh: Any, q: Any, k: Any, v: Any, unseen: set[int]) -> Any:
    """One query, one key at a time."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    for b, n, s in ((b, n, s) for b in range(q.shape[0]) for n in range(q.shape[1]) for s in range(q.shape[2])):
        weights = {t: weigh(score(q[b, n, s], k[b, n, t], n)) for t in range(k.shape[2]) if t not in unseen}
        total = sum(abs(weight) for weight in weights.values())
        out[b, n, s] = sum(weight / total * v[b, n, t] for t, weight in weights.items())
    return out


KERNELS = {
    "dot": torch.exp,
    "exp": torch.exp,
    "linear": lambda s: s,
    "relu": lambda s: s.clamp(min=0),
    "elu_plus_one": lambda s: torch.nn.functional.elu(s) + 1,
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_weighs_few_queries_and_many_keys_by_its_function_of_their_products(name: str) -> None:
    q, k, v = drawn(2, HEADS, QUERIES, WIDTH), drawn(2, HEADS, KEYS, WIDTH), drawn(2, HEADS, KEYS, 4)
    seen = torch.ones(1, 1, 1, KEYS, dtype=torch.bool)
    seen[..., [3, 40]] = False
    found = attend_scored(q, k, v, form=form_of(name), weight_NH=None, mask=seen)
    expected = spelled(lambda a, b, _: a @ b, KERNELS[name], q, k, v, {3, 40})
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_an_additive_score_is_a_vector_times_the_tanh_of_a_sum() -> None:
    q, k, v = drawn(2, HEADS, QUERIES, 6), drawn(2, HEADS, KEYS, 6), drawn(2, HEADS, KEYS, 4)
    weight = drawn(HEADS, 6)
    found = attend_scored(q, k, v, form=form_of("additive", hidden_size=6), weight_NH=weight)
    expected = spelled(lambda a, b, n: weight[n] @ torch.tanh(a + b), torch.exp, q, k, v, set())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_long_text_meets_its_keys_a_few_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, weight = drawn(2, HEADS, 7, 6), drawn(2, HEADS, KEYS, 6), drawn(2, HEADS, KEYS, 4), drawn(HEADS, 6)
    words: dict[str, Any] = {"form": form_of("additive", hidden_size=6), "weight_NH": weight}
    whole = attend_scored(q, k, v, **words)
    monkeypatch.setattr(leaf, "SLAB", 2 * HEADS * 6 * KEYS * 3)
    torch.testing.assert_close(attend_scored(q, k, v, **words), whole, rtol=1e-12, atol=1e-12)


def test_a_token_that_nothing_speaks_to_gets_zeros_and_finite_gradients() -> None:
    q, k = torch.ones(1, 1, 2, 3, requires_grad=True), -torch.ones(1, 1, 4, 3)
    out = attend_scored(q, k, torch.ones(1, 1, 4, 2), form=form_of("relu"), weight_NH=None)
    out.sum().backward()
    assert not out.any()
    assert q.grad is not None
    assert bool(q.grad.isfinite().all())


def nodes(score: Any) -> list[str]:
    keys = {"num_heads": 2, "head_dim": 4, "score": score}
    graph = expand(loads_spec(spec_text("mixer", "general_attention", keys, {"position": "none"})))
    return [node.op.op_name for _, node in graph.walk() if "attention" in node.op.op_name]


def test_softmaxes_of_products_are_the_fused_attention() -> None:
    assert {name: nodes(name) for name in ("dot", "scaled_dot", "exp")} == dict.fromkeys(
        ("dot", "scaled_dot", "exp"), ["attention"] * 2
    )
    assert nodes("relu") == ["score_attention"] * 2


def test_a_position_that_turns_products_has_no_place_under_a_sum() -> None:
    keys = {"num_heads": 2, "head_dim": 4, "score": {"kind": "additive", "hidden_size": 4}}
    with pytest.raises(GraphError, match="position rope turns queries and keys for their product"):
        expand(loads_spec(spec_text("mixer", "general_attention", keys)))
    expand(loads_spec(spec_text("mixer", "general_attention", {**keys, "score": "relu"})))


def test_a_score_is_required_and_an_unknown_one_is_answered_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="score is required"):
        loads_spec(spec_text("mixer", "general_attention", {"num_heads": 2, "head_dim": 4}))
    with pytest.raises(SpecError, match=r"unknown score \(found cosine\).*\n?.*Installed: additive, dot,"):
        loads_spec(spec_text("mixer", "general_attention", {"num_heads": 2, "head_dim": 4, "score": "cosine"}))


class SoftplusKernel(Score):
    """log(1 + e^<q, k>) over the sum of its row: a kernel of a package's own, said as a form."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm(function="softplus", weighing="sum")


class Cosine(Score):
    """The cosine of q and k, ten times: a score of a package's own, placed by itself."""

    is_product: ClassVar[bool] = True
    factor: float = 10.0
    """Factor on the cosine."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm(scale=self.factor)

    def attend(
        self, g: Builder, name: str, q: Value, k: Value, v: Value, *, num_heads: int, cross: bool = False
    ) -> Value:
        q, k = (g.l2_norm(each, head_dim=q.width // num_heads) for each in (q, k))
        return super().attend(g, name, q, k, v, num_heads=num_heads, cross=cross)


@pytest.mark.parametrize("score", [SoftplusKernel, Cosine])
def test_a_score_of_another_package_keeps_the_contract(score: type[Score]) -> None:
    assert "ONNX" in str(check_kind(score))


def test_a_score_of_another_package_stands_inside_a_recurrent_decoder_too() -> None:
    around = {
        "mixers": {
            "reader": {"kind": "gru", "hidden_size": 5, "bidirectional": True},
            "writer": {"kind": "attention_gru", "hidden_size": 7, "score": "softplus_kernel"},
        },
        "position": "none",
        "encoder": {"block": "plain", "mixer": "reader", "ffn": "none"},
        "decoder": {"block": "plain", "mixer": "writer", "ffn": "none"},
        "head": {"kind": "maxout_lm", "hidden_size": 6},
    }
    with registry.temporary({("score", "softplus_kernel"): SoftplusKernel}):
        check_kind("mixer.attention_gru", around=around)


SUM = {"kind": "additive", "hidden_size": 6}


@pytest.mark.parametrize(
    ("score", "around"),
    [
        (SUM, {"encoder": {}}),
        (SUM, {"stack": {"mask": "prefix"}}),
        (SUM, {"encoder": {}, "decoder": {}}),
        # Longer than the texts: what it forgets changes results on purpose.
        (SUM, {"cache": {"policy": "window", "window": 40, "sink_tokens": 2}}),
        ("linear", {"encoder": {}}),
        ("relu", {"encoder": {}, "decoder": {}}),
    ],
    ids=["sum, all seen", "sum, prefix", "sum, cross", "sum, ring", "product, all seen", "product, cross"],
)
def test_a_score_keeps_the_contract_under_every_mask(score: Any, around: dict[str, Any]) -> None:
    keys = {"num_heads": 2, "head_dim": 8, "v_head_dim": 5, "qkv_bias": True, "score": score}
    check_kind("mixer.general_attention", keys, around={"position": "none", **around})


@torch.no_grad()
def test_the_exponential_kernel_is_the_softmax_of_products() -> None:
    def logits(score: str) -> Any:
        keys = {"num_heads": 2, "head_dim": 4, "score": score}
        text = spec_text("mixer", "general_attention", keys, {"position": "none"})
        model = archc.build(loads_spec(text), device="cpu", dtype="float64", seed=1)
        return model(torch.arange(12).unsqueeze(0))

    torch.testing.assert_close(logits("exp"), logits("dot"), rtol=0, atol=0)
