"""``opaque``: a user's torch module is counted, built and judged by what is declared of it, and exported by its own lowering."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from archc import registry
from archc.errors import ArchcError, GraphError, PluginError
from archc.estimation.activations import measure_activations
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.families import FFN
from archc.graph.lockfile import to_lock, to_text
from archc.ir.size import BATCH, SEQ
from archc.ir.values import Param
from archc.spec.load import loads_spec
from tests.plugins.specs import tiny

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch
HOME = "tests.torch_backend.opaque_modules"


def weights(width: int = 12, size: int = 16) -> list[Param]:
    return [
        Param("left.weight", (width, size), axes=("ffn", None)),
        Param("right.weight", (width, size), axes=("ffn", None)),
        Param("right.bias", (width,), axes=("ffn",), init="zeros"),
        Param("down.weight", (size, width), axes=(None, "ffn")),
        Param("shift", (size,), init="zeros", trainable=False, dtype="float32"),
    ]


class OpaqueFFN(FFN):
    """A feed-forward that is somebody's module."""

    steep: float = 1.0

    def define(self, g, x):
        work = BATCH * SEQ * (2 * 3 * 16 * 12)
        words = {"width": 12, "sizes": [16, 16], "steep": self.steep}
        # tanh keeps its result, the product both factors, and the last map what goes in; two maps write 12 numbers, one 16.
        kept = {"activations": BATCH * SEQ * (3 * 12), "products": BATCH * SEQ * (2 * 12 + 16)}
        return g.opaque(
            "own", f"{HOME}:Bilinear", (x, x), width=16, params=weights(), flops=work, keywords=words, **kept
        )


class AnyFFN(FFN):
    """An opaque module of the tester's choice, declared as the tester likes."""

    place: str = f"{HOME}:Twice"
    given: Any = None

    def define(self, g, x):
        return g.opaque("own", self.place, (x,), **{"width": 16, **(self.given or {})})


@pytest.fixture(autouse=True)
def plugins():
    with registry.temporary({("ffn", "own"): OpaqueFFN, ("ffn", "any"): AnyFFN}):
        yield


SPEC = tiny(ffn="{kind: own, steep: 0.5}")


def graph():
    return expand(loads_spec(SPEC))


def built(place: str, **given: Any) -> Any:
    from archc.torch_backend.build import build

    spec = loads_spec(tiny(ffn="any"))
    ffn = AnyFFN(place=place, given=given)
    return build(expand(spec.model_copy(update={"ffns": {"ffn": ffn}})), device="cpu", seed=0)


def test_it_keeps_the_contract_of_every_kind():
    from archc.testing.contract import check_spec

    check_spec(SPEC)


def test_what_it_declares_that_backward_keeps_is_what_autograd_keeps():
    from archc.testing.activations import check_activations

    assert check_activations(graph()) == []


def test_what_it_keeps_for_backward_is_left_out_by_name_where_it_does_not_say():
    spec = loads_spec(tiny(ffn="any"))
    silent = expand(spec.model_copy(update={"ffns": {"ffn": AnyFFN(place="torch.nn:Identity")}}))
    assert measure_activations(silent, batch_size=2, seq_len=8).left_out == [
        (f"layers.{layer}.ffn.own", "opaque") for layer in range(2)
    ]


def test_its_declared_weights_and_work_are_counted():
    own = graph()
    without = expand(loads_spec(tiny(ffn="{kind: swiglu, intermediate_size: 24}")))
    trained = 2 * (3 * 16 * 12 + 12)
    assert estimate(own).parameters.total == estimate(without).parameters.total - 2 * 3 * 16 * 24 + trained
    assert own.params()["layers.1.ffn.own.shift"].dtype == "float32"


def test_its_weights_lie_under_its_name_and_keep_declared_dtypes():
    from archc.torch_backend.build import build, cast

    model = cast(build(graph(), device="cpu", seed=0), "bfloat16")
    state = model.state_dict()
    assert state["layers.0.ffn.own.down.weight"].dtype == torch.bfloat16
    assert state["layers.0.ffn.own.shift"].dtype == torch.float32
    assert model.layers[0].ffn.own.steep == 0.5
    assert build(graph()).layers[0].ffn.own.left.weight.is_meta
    assert pickle.loads(pickle.dumps(model)).state_dict().keys() == state.keys()


def test_the_lockfile_says_all_that_was_declared():
    lock = to_lock(graph())
    assert json.loads(to_text(graph())) == json.loads(json.dumps(lock))
    (item,) = (item for block in lock["blocks"].values() for item in block["items"] if item.get("op") == "opaque")
    assert item["attrs"]["module"] == f"{HOME}:Bilinear"
    assert item["attrs"]["work"] == "1152*batch*seq"
    assert item["attrs"]["keywords"] == [["sizes", [16, 16]], ["steep", 0.5], ["width", 12]]
    assert item["params"]["shift"]["trainable"] is False


def test_the_class_is_imported_when_a_model_is_built_and_no_earlier():
    code = (
        "import sys\n"
        "from archc.graph.vocabulary import Builder\n"
        "from archc.ir.size import BATCH, SEQ\n"
        "from archc.ir.values import TensorType\n"
        "g = Builder()\n"
        "x = g.add_input('x', TensorType((BATCH, SEQ, 16)))\n"
        "print(g.opaque('own', 'no.such_package:Thing', (x,), width=4).width, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "False"]


WRONG = {
    "an undeclared weight": (
        f"{HOME}:Twice",
        {},
        r"own: .*:Twice is not as declared: its weight \[4, 4\] is not declared; its other",
    ),
    "a weight it has not": (
        "torch.nn:Identity",
        {"params": (Param("gain", (4,)),)},
        "declared gain is not in it",
    ),
    "another shape": (
        "torch.nn:Linear",
        {
            "params": (Param("weight", (16, 15)),),
            "keywords": {"in_features": 16, "out_features": 16, "bias": False},
        },
        r"its weight is \[16, 16\], declared \[16, 15\]",
    ),
    "an untrained parameter": (
        "torch.nn:Linear",
        {
            "params": (Param("weight", (16, 16), trainable=False),),
            "keywords": {"in_features": 16, "out_features": 16, "bias": False},
        },
        "its weight is a parameter, declared untrainable",
    ),
    "a buffer that is not saved": (
        f"{HOME}:Fleeting",
        {"params": (Param("weight", (4, 4)),)},
        "its buffer mask is not persistent",
    ),
    "one weight under two names": (
        f"{HOME}:Twice",
        {"params": (Param("weight", (4, 4)), Param("other", (4, 4)))},
        "two of its weights are one tensor",
    ),
}


@pytest.mark.parametrize(("place", "given", "message"), WRONG.values(), ids=WRONG)
def test_a_module_that_is_not_as_declared_is_refused(place, given, message):
    with pytest.raises(GraphError, match=message):
        built(place, **given)


ABSENT = {
    "a package": ("no.such_package:Thing", "can't be imported: ModuleNotFoundError"),
    "a class": (f"{HOME}:Nothing", "can't be imported: AttributeError"),
    "a class at all": (f"{HOME}:no_class", "is no subclass of torch.nn.Module"),
    "a licence": (f"{HOME}:Broken", "can't be built: RuntimeError: needs a licence"),
    "a keyword": ("torch.nn:Linear", "can't be built: TypeError"),
}


@pytest.mark.parametrize(("place", "message"), ABSENT.values(), ids=ABSENT)
def test_a_class_that_lacks_something_is_an_error_that_names_it(place, message):
    with pytest.raises(PluginError, match=message):
        built(place)


ILLEGAL = {
    "a file": ("/tmp/thing.py:Thing", {}, "module should be package.file:Class"),
    "no class": ("package.thing", {}, "module should be package.file:Class"),
    "a relative path": ("..thing:Thing", {}, "module should be package.file:Class"),
    "no width": (f"{HOME}:Twice", {"width": 0}, "should be positive"),
    "a keyword that can't be written down": (
        f"{HOME}:Twice",
        {"keywords": {"a": {}}},
        r"keyword a of .* \(found dict\)",
    ),
    "a weight declared twice": (
        f"{HOME}:Twice",
        {"params": (Param("weight", (4, 4)), Param("weight", (4, 4)))},
        "declares weight twice",
    ),
}


@pytest.mark.parametrize(("place", "given", "message"), ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_declaration_is_refused_when_it_is_traced(place, given, message):
    with pytest.raises(GraphError, match=message):
        built(place, **given)


def test_a_module_that_looks_at_other_tokens_is_found_out():
    from archc.testing.contract import check_spec

    with pytest.raises(AssertionError, match="values differ"):
        check_spec(tiny(ffn=f"{{kind: any, place: '{HOME}:Sharing'}}"))


@pytest.mark.onnx
def test_onnx_refuses_it_with_a_reason(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ArchcError) as caught:
        registry.load("exporter", "onnx")(graph(), tmp_path / "out")
    assert str(caught.value) == (
        f"layers.0.ffn.own: {HOME}:Bilinear is an opaque torch module, and brings no lowering to ONNX; register one as "
        f'"{HOME}.Bilinear" in the entry-point group archc.onnx'
    )
    assert not (tmp_path / "out").exists()


def lowering(ctx, node, x, y):
    left, right = (
        ctx.op("MatMul", each, turned(ctx, node, f"{name}.weight")) for each, name in ((x, "left"), (y, "right"))
    )
    right = ctx.op("Add", right, ctx.weight(node, "right.bias"))
    steep = ctx.op("Mul", left, ctx.scalar(dict(node.op.keywords)["steep"], x.dtype))
    down = ctx.op("MatMul", ctx.op("Mul", ctx.op("Tanh", steep), right), turned(ctx, node, "down.weight"))
    return ctx.op("Add", down, ctx.cast(ctx.weight(node, "shift"), x.dtype))


def turned(ctx, node, role):
    shape = node.params[role].shape[::-1]
    return ctx.weight(node, role, tag="turned", shape=shape, transform=lambda array: array.T)


@pytest.mark.onnx
def test_the_lowering_that_its_class_brings_exports_it():
    pytest.importorskip("onnxruntime")
    from archc.testing.kinds import check_kind

    with registry.temporary({("onnx", f"{HOME}.Bilinear"): lowering}):
        report = check_kind("ffn.own", {"steep": 0.5})
    assert "ONNX = torch" in str(report)
