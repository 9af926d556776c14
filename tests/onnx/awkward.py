"""Small models whose nodes land in awkward places, and where onnxruntime-gpu 1.31.1 puts them without optimisation.

The places were read from that release's own CUDA provider; they are no prediction of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, F16, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
INT32, INT64, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
MS = "com.microsoft"


@dataclass(frozen=True)
class Awkward:
    """A model, the names of its nodes on the CPU with the reason, and its Memcpy nodes: (op, value)."""

    model: onnx.ModelProto
    cpu: dict[str, str]
    memcpy: tuple[tuple[str, str], ...] = ()


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    """A node named like its op, or by ``name``; arguments are separated by spaces, a dash stands for one left out."""
    name = str(attributes.pop("name", op))
    values = [["" if value == "-" else value for value in side.split()] for side in (inputs, outputs)]
    return helper.make_node(op, values[0], values[1], name=name, **attributes)


def value(name: str, type_: int = F32, shape: Sequence[int | str] | None = ("a", "b")) -> onnx.ValueInfoProto:
    """An input or output."""
    return helper.make_tensor_value_info(name, type_, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    *,
    opset: int = 24,
    **constants: object,
) -> onnx.ModelProto:
    """A model; keywords are its initializers."""
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "awkward", list(inputs), list(outputs), stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def branch(name: str, nodes: Sequence[onnx.NodeProto], output: str) -> onnx.GraphProto:
    """A branch of If with one float output."""
    return helper.make_graph(list(nodes), name, [], [value(output, shape=None)])


def _if(condition: str, then: Sequence[onnx.NodeProto]) -> onnx.NodeProto:
    other = branch("else", [node("Relu", "x", "e", name="else/Relu")], "e")
    return node("If", condition, "y", then_branch=branch("then", then, "t"), else_branch=other)


X, Y = value("x"), value("y", shape=None)
INTS_Y = value("y", INT64, None)
HARMLESS, NO_KERNEL, REFUSES = "cpu-preferred", "no-kernel", "kernel-refuses-node"

AWKWARD: dict[str, Awkward] = {
    "an input wanted on both sides": Awkward(
        model(
            [node("Range", "zero n one", "r"), node("Unsqueeze", "n axis", "n1"), node("Add", "n1 r", "y")],
            [value("n", INT64, ())],
            [INTS_Y],
            zero=0,
            one=1,
            axis=[0],
        ),
        {},
        (("MemcpyFromHost", "n"),),
    ),
    "an op without a CUDA kernel in the middle": Awkward(
        model(
            [node("Relu", "x", "p", name="before"), node("Hardmax", "p", "q"), node("Relu", "q", "y", name="after")],
            [X],
            [Y],
        ),
        {"Hardmax": NO_KERNEL},
        (("MemcpyFromHost", "q"), ("MemcpyToHost", "p")),
    ),
    "GroupQueryAttention in float32": Awkward(
        model(
            [
                node(
                    "GroupQueryAttention",
                    "q k v pk pv lengths total",
                    "o npk npv",
                    domain=MS,
                    num_heads=4,
                    kv_num_heads=2,
                )
            ],
            [
                *(value(name, shape=("b", "s", width)) for name, width in (("q", 32), ("k", 16), ("v", 16))),
                *(value(name, shape=("b", 2, "c", 8)) for name in ("pk", "pv")),
                value("lengths", INT32, ("b",)),
                value("total", INT32, ()),
            ],
            [value(name, shape=None) for name in ("o", "npk", "npv")],
        ),
        {"GroupQueryAttention": NO_KERNEL},
    ),
    "an attribute that the provider refuses": Awkward(
        model(
            [
                node("ArgMax", "x", "i", axis=-1, select_last_index=1, name="last"),
                node("ArgMax", "x", "j", axis=-1, name="first"),
                node("Add", "i j", "y"),
            ],
            [X],
            [INTS_Y],
        ),
        {"last": REFUSES},
        (("MemcpyFromHost", "x"), ("MemcpyFromHost", "i")),
    ),
    "shape arithmetic that meets a large constant": Awkward(
        model(
            [
                node("Shape", "x", "s"),
                node("ReduceProd", "s", "p", keepdims=0),
                node("Add", "p many", "q"),
                node("Cast", "q", "f", to=F32),
                node("Mul", "f two", "y"),
            ],
            [X],
            [Y],
            many=np.arange(200),
            two=np.float32(2),
        ),
        {"ReduceProd": NO_KERNEL},
        (("MemcpyFromHost", "p"),),
    ),
    "a shape that Reshape reads": Awkward(
        model(
            [
                node("Shape", "x", "s"),
                node("Slice", "s zero one", "head"),
                node("Concat", "head rest", "shape", axis=0),
                node("Reshape", "x shape", "y"),
            ],
            [X],
            [Y],
            zero=[0],
            one=[1],
            rest=[-1],
        ),
        {"Slice": HARMLESS, "Concat": HARMLESS},
    ),
    "a bound that is computed on the GPU": Awkward(
        model(
            [node("ReduceMax", "n", "m", keepdims=1), node("Slice", "x zero m zero", "y")],
            [X, value("n", INT64, ("b",))],
            [Y],
            zero=[0],
        ),
        {},
        (("MemcpyToHost", "m"),),
    ),
    "a left-out input in shape arithmetic": Awkward(
        model(
            [node("Shape", "x", "s"), node("Clip", "s - one", "t"), node("Expand", "w t", "y")],
            [X],
            [Y],
            one=1,
            w=np.float32([[1]]),
        ),
        {},
        (("MemcpyFromHost", "s"), ("MemcpyToHost", "t")),
    ),
    "a shape as float16": Awkward(
        model(
            [
                node("Shape", "x", "s"),
                node("Cast", "s", "f", to=F16, name="down"),
                node("Sqrt", "f", "g"),
                node("Cast", "g", "k", to=INT64, name="up"),
                node("Add", "k one", "y"),
            ],
            [X],
            [INTS_Y],
            one=1,
        ),
        {"down": HARMLESS},
        (("MemcpyFromHost", "f"),),
    ),
    "If over an input, a shape in its branch": Awkward(
        model(
            [node("Shape", "x", "s"), _if("c", [node("Reshape", "x s", "t", name="then/Reshape")])],
            [X, value("c", BOOL, ())],
            [Y],
        ),
        {"If": HARMLESS},
    ),
    "If over a shape": Awkward(
        model(
            [
                node("Shape", "x", "s", start=0, end=1),
                node("Greater", "s one", "g"),
                node("Squeeze", "g zero", "c"),
                _if(
                    "c",
                    [
                        node("Add", "s one", "t0", name="then/Add"),
                        node("Cast", "t0", "t1", to=F32, name="then/Cast"),
                        node("Mul", "x t1", "t", name="then/Mul"),
                    ],
                ),
            ],
            [X],
            [Y],
            one=[1],
            zero=[0],
        ),
        {"Greater": HARMLESS, "Squeeze": HARMLESS},
    ),
    "a value from outside that a branch wants on both sides": Awkward(
        model(
            [
                node("Abs", "n", "m"),
                _if(
                    "c",
                    [
                        node("Slice", "x zero m", "t0", name="then/Slice"),
                        node("Cast", "m", "t1", to=F32, name="then/Cast"),
                        node("Mul", "t0 t1", "t", name="then/Mul"),
                    ],
                ),
            ],
            [X, value("c", BOOL, ()), value("n", INT64, (1,))],
            [Y],
            zero=[0],
        ),
        {},
        (("MemcpyFromHost", "m"),),
    ),
    "an op without a CUDA kernel behind a shape": Awkward(
        model(
            [
                node("Shape", "x", "s"),
                node("Cast", "s", "f", to=F32, name="down"),
                node("Hardmax", "f", "h"),
                node("Cast", "h", "k", to=INT64, name="up"),
                node("Expand", "w k", "y"),
            ],
            [X],
            [Y],
            w=np.float32([[1]]),
        ),
        {"down": HARMLESS, "Hardmax": NO_KERNEL, "up": HARMLESS},
    ),
    "constants as nodes": Awkward(
        model(
            [
                node("Constant", "", "k", value_ints=[1], name="axis"),
                node("Unsqueeze", "x k", "u"),
                node("Constant", "", "f", value_float=2.0, name="factor"),
                node("Mul", "u f", "y"),
            ],
            [X],
            [Y],
        ),
        {},
    ),
    "a Loop": Awkward(
        model(
            [
                node(
                    "Loop",
                    "n c x",
                    "y",
                    body=helper.make_graph(
                        [node("Relu", "v", "w", name="body/Relu"), node("Identity", "ci", "co", name="body/Identity")],
                        "body",
                        [value("i", INT64, ()), value("ci", BOOL, ()), value("v")],
                        [value("co", BOOL, ()), value("w")],
                    ),
                )
            ],
            [X, value("n", INT64, ()), value("c", BOOL, ())],
            [Y],
        ),
        {},
    ),
}
