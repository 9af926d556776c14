"""Nodes that the CUDA provider leaves to the CPU although it has a kernel for them: it looks at their attributes as well."""

from __future__ import annotations

import onnx

from archc_exporters.onnx.placement.element_types import attributes

_PEEPHOLES = 7
"""Input of LSTM with the peephole weights."""


def refusal(node: onnx.NodeProto) -> str:
    """Why the CUDA provider does not take the node; empty where it does."""
    given = attributes(node)

    def number(name: str) -> int:
        return given[name].i if name in given else 0

    match node.op_type:
        case "ArgMax" | "ArgMin" if number("select_last_index"):
            return "select_last_index is 1"
        case "GRU" if not number("linear_before_reset"):
            return "linear_before_reset is 0"
        case "LSTM" if len(node.input) > _PEEPHOLES and node.input[_PEEPHOLES]:
            return "it has peepholes"
        case "LSTM" if number("input_forget"):
            return "input_forget is 1"
        case "ConvTranspose" if "auto_pad" in given and given["auto_pad"].s.startswith(b"SAME"):
            return "auto_pad chooses uneven padding"
        case _:
            return ""
