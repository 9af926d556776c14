"""The contract is a judge: a kind that is wrong in one way fails it, and the message says in which."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from archc import registry  # noqa: E402
from archc.families import Mixer  # noqa: E402
from archc.ir.op import Op, op  # noqa: E402
from archc.ir.size import BATCH, SEQ  # noqa: E402
from archc.ir.values import Param, State  # noqa: E402
from archc.torch_backend.step import carried  # noqa: E402
from tests.plugins.specs import tiny  # noqa: E402

pytestmark = pytest.mark.torch


@op
class Shift(Op):
    """The weighted sum of a token and the one before it, through a matrix; ``fault`` names what is wrong."""

    op_name = "faulty_shift"
    fault: str

    def infer(self, inputs):
        return (inputs[0],)

    def params(self, inputs):
        width = inputs[0].width
        params = {"weight": Param("weight", (width, width))}
        return params | ({"idle": Param("idle", (width,))} if self.fault == "an idle weight" else {})

    def states(self, inputs):
        shape = (BATCH, 1, inputs[0].width)
        return {"last": State("last", shape, shape, growth="fixed", role="convolution")}

    def flops(self, inputs, form, pairs):
        width = inputs[0].width
        return BATCH * SEQ * (2 * width * width + (self.fault == "uncounted work"))


class _Doubled(torch.autograd.Function):
    """The value itself, with a gradient that is twice too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Leaf(nn.Module):
    def __init__(self, fault, twin):
        super().__init__()
        self.fault, self.twin = fault, twin

    def forward(self, x, step=None, last=None):
        held = last if self.fault == "a state that outlives its text" and step is not None else carried(last, step)
        before = x.new_zeros(x.shape[0], 1, x.shape[2]) if held is None else held
        columns = torch.cat((before, x), 1)
        if last is not None:
            if step.new is None or self.fault == "padding in the state":
                last.copy_(columns[:, -1:])
            else:
                last.copy_(columns.gather(1, step.new.view(-1, 1, 1).expand(-1, 1, x.shape[2])))
        earlier = columns[:, 1:] if self.fault == "one token at a time" and x.shape[1] == 1 else columns[:, :-1]
        y = (x + 0.5 * earlier) @ self.weight.T
        if self.fault == "a twin of its own mind" and self.twin:
            y = y * 1.01
        if self.fault == "a wrong gradient" and not self.twin:
            y = _Doubled.apply(y)
        return y + 0 * self.idle.detach() if self.fault == "an idle weight" else y


def lowering(node, context):
    leaf = Leaf(node.op.fault, context.twin)
    for role, param in node.params.items():
        context.register(leaf, param, role)
    if node.op.fault == "a weight that nobody declared":
        leaf.extra = nn.Parameter(torch.zeros(1))
    return leaf


class FaultyShift(Mixer):
    fault: str

    def define(self, g, x):
        return g.emit(Shift(fault=self.fault), (x,), name="shift")[0]


FAULTS = {
    "uncounted work": r"the graph says \d+ FLOPs, torch counts \d+",
    "a weight that nobody declared": "the graph and the module differ in .*shift.extra",
    "an idle weight": "shift.idle has no gradient",
    "one token at a time": "prefill, chunk and single steps: values differ",
    "a state that outlives its text": "over a used cache: values differ",
    "padding in the state": "ragged row 1 over 4 tokens: values differ",
    "a twin of its own mind": "the twin that counts needed pairs: values differ",
    "a wrong gradient": "the gradient of .*: values differ",
}


@pytest.fixture(autouse=True)
def faulty():
    with registry.temporary({("mixer", "faulty"): FaultyShift, ("torch", "faulty_shift"): lowering}):
        yield


def spec(fault):
    return tiny(f"{{kind: faulty, fault: {fault}}}", position="none")


def test_without_a_fault_it_passes(contract):
    contract(spec("none at all"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(contract, fault):
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        contract(spec(fault))
