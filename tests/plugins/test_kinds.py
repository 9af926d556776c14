"""``check_kind``, as a third party runs it: it passes for every kind that is installed, and says what fails where one does."""

from __future__ import annotations

import pytest

from archc import registry
from archc.errors import PluginError, SpecError
from archc.families import FFN
from archc.testing.placing import spec_text
from tests.plugins.kinds import EXAMPLES, MLA
from tests.plugins.specs import tiny

pytest.importorskip("torch")

from archc.testing import check_kind

pytestmark = pytest.mark.torch

INSTALLED = [
    f"{plugin.family}.{plugin.name}"
    for plugin in registry.installed()
    if plugin.family in registry.FAMILIES and plugin.package == "archc-compiler"
]


class Doubling(FFN):
    """A feed-forward without weights."""

    factor: float

    def define(self, g, x):
        return g.scale(x, self.factor)


class TokenGLU(FFN):
    """Its name tells where words begin."""

    def define(self, g, x):
        return x


class Refused(FFN):
    """A torch module that ONNX can't say."""

    def define(self, g, x):
        return g.opaque("own", "torch.nn:Identity", (x,), width=x.width)


@pytest.mark.parametrize("kind", INSTALLED)
def test_every_installed_kind_has_an_example_and_keeps_the_contract(kind: str):
    assert kind in EXAMPLES, f"{kind} is new: give it keys in tests/plugins/kinds.py"
    given = EXAMPLES[kind]
    report = check_kind(kind, given.keys, around=given.around, onnx=given.onnx)
    assert report.kind == kind
    assert len(report.checks) >= 6


def test_the_report_says_what_was_checked_line_by_line():
    lines = str(check_kind("ffn.swiglu", {"intermediate_size": 24})).splitlines()
    assert lines[0] == "ffn.swiglu:"
    assert [line.split(":")[0].strip() for line in lines[1:-1]] == [
        "graph",
        "weights",
        "cached = uncached",
        "ragged rows = each row alone; only the last token = the last of all",
        "cache",
        "twins",
        "gradients",
        "activations",
    ]
    assert lines[-1].startswith("  ONNX")


def test_a_class_is_checked_before_it_is_installed():
    report = check_kind(Doubling, {"factor": 0.5})
    assert report.kind == "ffn.doubling"
    assert "kind: doubling" in report.spec
    assert registry.find("ffn", "doubling") is None
    assert check_kind(TokenGLU).kind == "ffn.token_glu"


def test_a_class_may_have_the_name_of_an_installed_kind():
    taken = type("Swiglu", (Doubling,), {"__doc__": "x", "__module__": __name__})
    assert check_kind(taken, {"factor": 0.5}).kind == "ffn.swiglu_checked"


def test_a_registered_class_is_known_by_its_registered_name():
    with registry.temporary({("ffn", "twice"): Doubling}):
        check_kind("ffn.twice", {"factor": 2.0})
        assert check_kind(Doubling, {"factor": 2.0}).kind == "ffn.twice"


def test_the_spec_may_be_given_and_must_place_the_kind():
    assert check_kind("mixer.gqa", spec=tiny()).spec == tiny()
    with pytest.raises(AssertionError, match="the spec does not name the mixer kda"):
        check_kind("mixer.kda", spec=tiny())


def test_sections_around_the_kind_can_be_replaced():
    report = check_kind("position.rope", {"theta": 100.0}, around={"mixers": {"mixer": MLA}})
    assert "kind: mla" in report.spec


def test_wrong_keys_are_the_errors_that_a_spec_gives():
    with pytest.raises(SpecError, match="factor is required"):
        check_kind(Doubling)
    with pytest.raises(SpecError, match="Did you mean num_heads"):
        check_kind("mixer.kda", {"num_head": 2, "head_dim": 8})


def test_an_unknown_name_is_an_error_that_lists_what_there_is():
    with pytest.raises(PluginError, match=r"unknown mixer 'kdaa'.* Did you mean kda"):
        check_kind("mixer.kdaa")
    with pytest.raises(PluginError, match=r"a kind is named as family\.name \(found 'kda'\)"):
        check_kind("kda")
    with pytest.raises(PluginError, match="a spec has no place for the exporter thing"):
        spec_text("exporter", "thing", {})


@pytest.mark.onnx
class TestOnnx:
    """The half that runs an exported file."""

    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("onnxruntime")

    def test_a_lowering_that_is_wrong_is_found(self):
        from archc_exporters.onnx import elementwise

        def scale(ctx, node, x):
            return ctx.op("Mul", x, ctx.scalar(node.op.factor * 1.01, x.dtype))

        original = registry.load("onnx", "scale")
        assert original is elementwise.scale
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(registry._loaded, ("onnx", "scale"), scale)
            with pytest.raises(AssertionError, match="ONNX, whole: onnxruntime differs from torch by"):
                check_kind(Doubling, {"factor": 0.5})

    def test_padding_that_a_lowering_lets_in_is_found(self):
        from archc_exporters.onnx import linear_attention

        def nothing_is_padding(ctx):
            shape = ctx.op("Shape", ctx.inputs["input_ids"], dtype=linear_attention.ir.DataType.INT64)
            shape = ctx.op("Concat", shape, ctx.ints(1), axis=0)
            return ctx.filled(shape, 1.0, linear_attention.FLOAT)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linear_attention, "valid_tokens", nothing_is_padding)
            with pytest.raises(AssertionError, match="ONNX, ragged rows: onnxruntime differs from torch by"):
                check_kind("mixer.kda", EXAMPLES["mixer.kda"].keys)

    def test_without_onnxruntime_the_report_says_that_it_was_not_checked(self, monkeypatch):
        from archc.testing import onnx_values

        monkeypatch.setattr(onnx_values, "NEEDED", ("onnx", "no_such_runtime"))
        report = check_kind(Doubling, {"factor": 0.5})
        assert report.checks[-1] == "ONNX: not checked (no_such_runtime not installed)"

    def test_a_refusal_fails_unless_it_is_expected_for_that_reason(self):
        with registry.temporary({("ffn", "refused"): Refused}):
            with pytest.raises(AssertionError, match=r"ONNX refuses it: .*brings no lowering"):
                check_kind("ffn.refused")
            report = check_kind("ffn.refused", onnx="brings no lowering")
            assert "refused as it should be" in report.checks[-1]
            with pytest.raises(AssertionError, match="for another reason than 'too large'"):
                check_kind("ffn.refused", onnx="too large")
            assert check_kind("ffn.refused", onnx=False).checks[-1] == "ONNX: left out"

    def test_an_expected_refusal_that_does_not_come_fails(self):
        with pytest.raises(AssertionError, match="ONNX should refuse it"):
            check_kind(Doubling, {"factor": 0.5}, onnx="no lowering")
