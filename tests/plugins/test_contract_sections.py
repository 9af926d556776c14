"""The contract of stacks that are not causal: it passes where it should, and finds what is wrong with padding and sources."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from archc import registry  # noqa: E402
from archc.families import Mixer  # noqa: E402
from archc.ir.op import Op, op  # noqa: E402
from archc.ir.size import BATCH, SEQ  # noqa: E402
from archc.spec.load import loads_spec  # noqa: E402
from archc.testing import check_kind  # noqa: E402
from archc.testing.placing import spec_text  # noqa: E402

pytestmark = pytest.mark.torch

GQA = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "qkv_bias": True}
TYPES = {"hidden_size": 16, "tie_word_embeddings": False, "type_vocab_size": 3, "norm": True}
ONE_LAYER = {"num_layers": 1, "block": "pre_norm", "mixer": "mixer", "cross": "mixer", "ffn": "ffn"}
AROUND = {
    "an encoder": {"encoder": {}},
    "an encoder of token types": {"encoder": {}, "embedding": TYPES},
    "a stack that sees everything": {"stack": {"mask": "bidirectional"}, "position": "learned"},
    "a prefix": {"stack": {"mask": "prefix"}},
    "a decoder with its encoder": {"encoder": {}, "decoder": {}},
    "a decoder less deep than its encoder": {"encoder": {"block": "post_norm"}, "decoder": ONE_LAYER},
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_grouped_attention_keeps_the_contract_in_every_section(around):
    report = check_kind("mixer.gqa", GQA, around=around, onnx=False)
    checks = "\n".join(report.checks)
    assert ("padded left or right" in checks) == (around.get("stack") != {"mask": "prefix"} and "decoder" not in around)
    assert ("padded sources" in checks) == ("decoder" in around)


@op
class Mean(Op):
    """Every token gets the mean of all; ``fault`` names what is wrong."""

    op_name = "faulty_mean"
    fault: str

    def infer(self, inputs):
        return (inputs[0],)

    def flops(self, inputs, form, pairs):
        return BATCH * SEQ * SEQ * (2 * inputs[0].width)


class Leaf(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, x, padding=None):
        seq = x.shape[1]
        seen = torch.ones(x.shape[:2]) if padding is None or self.fault == "padding" else padding.to(x.dtype)
        if self.fault == "the left":
            # The first column, padding or not.
            seen = seen * torch.arange(1, seq + 1)
        if self.fault == "a mask of ones" and padding is not None:
            seen = seen * 0.5
            return (seen / seen.sum(1, keepdim=True).clamp(min=1)).unsqueeze(1).expand(-1, seq, -1) @ x * 0.5
        weights = seen / seen.sum(1, keepdim=True)
        if self.fault == "a row of its neighbours":
            weights = weights.roll(1, 0)
            x = x.roll(1, 0)
        return weights.unsqueeze(1).expand(-1, seq, -1) @ x


class FaultyMean(Mixer):
    masks = ("bidirectional",)
    fault: str

    def define(self, g, x):
        return g.linear("o_proj", g.emit(Mean(fault=self.fault), (x, g.padding), name="mean")[0], x.width)


@pytest.fixture
def faulty():
    lowering = {("torch", "faulty_mean"): lambda node, context: Leaf(node.op.fault)}
    with registry.temporary({("mixer", "faulty"): FaultyMean, **lowering}):
        yield


@pytest.mark.usefixtures("faulty")
def test_a_mixer_that_sees_everything_stands_in_an_encoder_by_itself():
    report = check_kind("mixer.faulty", {"fault": "none at all"}, onnx=False)
    assert "encoder:" in report.spec
    assert "stack:" not in report.spec


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("padding", "row 1 padded on the right: values differ"),
        ("the left", "row 1 padded on the left: values differ"),
        ("a mask of ones", "a mask of ones: values differ"),
        ("a row of its neighbours", "row 0 padded on the right: values differ"),
    ],
)
def test_what_padding_changes_is_found(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_kind("mixer.faulty", {"fault": fault}, onnx=False)


def test_sources_whose_padding_is_read_are_found(monkeypatch):
    from archc.torch_backend.leaves import masked_attention

    kept = masked_attention.CrossAttention.forward

    def all_seen(self, q, k, v, padding, *rest):
        return kept(self, q, k, v, None if padding is None else torch.ones_like(padding), *rest)

    monkeypatch.setattr(masked_attention.CrossAttention, "forward", all_seen)
    with pytest.raises(AssertionError, match="with its source padded on the right, whole: values differ"):
        check_kind("mixer.gqa", GQA, around={"encoder": {}, "decoder": {}}, onnx=False)


def test_a_section_that_states_no_layers_is_the_usual_one_with_its_keys():
    spec = loads_spec(spec_text("mixer", "gqa", GQA, {"encoder": {"block": "post_norm"}, "decoder": {}}))
    assert [stack.num_layers for stack in spec.stacks().values()] == [2, 2]
    assert spec.encoder.block.kind_name == "post_norm"
    assert spec.decoder.cross == "mixer"
    assert spec.stack is None


def test_a_section_that_is_none_is_left_out():
    assert "ffns:" not in spec_text("mixer", "gqa", GQA, {"ffns": None})
