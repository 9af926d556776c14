"""Limits of onnxruntime's kernels that no registry lists: found in a file before a GPU finds them.

Facts of release 1.31, by running its kernels or their input checks; one function an op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import onnx

from archc_exporters.onnx.limits import GROUP_QUERY, LINEAR_ATTENTION
from archc_exporters.onnx.placement.element_types import attributes
from archc_exporters.onnx.placement.predict import Site
from archc_exporters.onnx.placement.shapes import Dim, Shapes, decode
from archc_exporters.onnx.target import BLOCK_SIZES

Severity = Literal["fails", "leaves the GPU", "slow", "bounded"]
"""``bounded``: it works under the condition that the message names."""
SEVERITIES: tuple[Severity, ...] = ("fails", "leaves the GPU", "slow", "bounded")

RELEASE = (1, 31)
FLASH_HEAD = 256
"""Largest head size of flash attention."""
MASK_MULTIPLE = 4
"""Masks of other widths keep attention out of the memory-efficient kernel."""
NEEDS_CUDNN = frozenset(
    (
        "MultiHeadAttention",
        "Conv",
        "ConvTranspose",
        "FusedConv",
        "ReduceMax",
        "ReduceL2",
        "ArgMax",
        "BatchNormalization",
    )
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One limit that a node meets: what happens, why, and the nearest legal choice."""

    severity: Severity
    message: str
    choice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A node as a rule sees it.

    Attributes:
        is_inside: whether the node is in a branch, where sizes may be known by the condition.
    """

    site: Site
    provider: str
    types: Mapping[str, str]
    shapes: Shapes
    is_inside: bool

    @property
    def node(self) -> onnx.NodeProto:
        """The node itself."""
        return self.site.node

    def input(self, name: str) -> str:
        """The value at a formal input; empty where it is left out."""
        formals = self.site.schema.inputs if self.site.schema else ()
        for formal, value in zip(formals, self.node.input, strict=False):
            if formal.name == name:
                return value
        return ""

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute."""
        found = attributes(self.node).get(name)
        if found is None:
            return default
        value = onnx.helper.get_attribute_value(found)
        return value.decode() if isinstance(value, bytes) else value

    def dim(self, value: str, number: int) -> Dim:
        """A dimension of a value."""
        shape = self.shapes.of(value) if value else None
        return shape[number] if shape and -len(shape) <= number < len(shape) else None


def findings(case: Case) -> Iterator[Finding]:
    """The limits that a node meets on its provider."""
    rule = _RULES.get(case.node.op_type)
    if rule is not None:
        yield from rule(case)
    if case.provider == "cuda" and case.site.provider == "cuda" and case.node.op_type in NEEDS_CUDNN:
        yield Finding(
            "bounded", "fails at run time where cuDNN is not installed", "install cuDNN, or say it with other ops"
        )
    yield from _unknown_parts(case)


def _unknown_parts(case: Case) -> Iterator[Finding]:
    schema = case.site.schema
    if schema is None or not schema.domain:
        return
    unknown = sorted(attribute.name for attribute in case.node.attribute if attribute.name not in schema.attributes)
    if unknown:
        yield Finding(
            "fails", f"attributes that 1.31 does not know: {', '.join(unknown)}", "leave them out, or require 1.32"
        )
    surplus = len(case.node.input) - len(schema.inputs)
    if surplus > 0 and not any(formal.option == "Variadic" for formal in schema.inputs):
        yield Finding("fails", f"{surplus} inputs more than 1.31 knows", "leave them out, or require 1.32")


def _group_query(case: Case) -> Iterator[Finding]:
    limits = GROUP_QUERY[RELEASE, "cuda" if case.provider == "cuda" else "cpu"]
    head = case.dim(case.input("past_key"), -1)
    fallback = "TensorScatter and Attention-24"
    if isinstance(head, int) and case.attribute("kv_cache_bit_width", 0) != 4:
        if head % limits.head_multiple:
            yield Finding("fails", f"a head size of {head} is no multiple of {limits.head_multiple}", fallback)
        if limits.head_max is not None and head > limits.head_max:
            yield Finding("fails", f"a head size of {head} is larger than {limits.head_max}", fallback)
        elif case.provider == "cuda" and head > FLASH_HEAD:
            yield Finding(
                "slow", f"a head size of {head} is larger than {FLASH_HEAD}: memory-efficient, not flash attention"
            )
    if case.provider == "cpu":
        if case.input("q_norm_weight") or case.input("k_norm_weight"):
            yield Finding(
                "fails", "the CPU kernel refuses q_norm_weight and k_norm_weight", "RMSNormalization before it"
            )
    else:
        yield from _group_query_on_cuda(case)
    if case.attribute("sliding_window_cache", 0):
        rows = "; on CUDA it has as many rows as the window, past and present in one buffer" * (case.provider == "cuda")
        yield Finding("bounded", f"a rolling cache takes no prompts of unequal length{rows}", "Attention over a ring")
    if case.input("past_key") and not limits.batched_chunks:
        yield Finding(
            "bounded", "several new tokens over a past are refused at batch > 1", f"row by row, or {fallback}"
        )


def _group_query_on_cuda(case: Case) -> Iterator[Finding]:
    if len([name for name in case.node.output if name]) < 3:
        yield Finding("fails", "it has no outputs present_key and present_value", "name all three outputs")
    if not case.input("attention_bias"):
        return
    if case.input("head_sink") or case.attribute("smooth_softmax", 0):
        yield Finding(
            "fails", "attention_bias with a sink is not implemented", "Attention-24 with the sink in its mask"
        )
    if any(case.attribute(name, "NONE") != "NONE" for name in ("k_quant_type", "v_quant_type")):
        yield Finding(
            "fails", "attention_bias with a quantised cache is not implemented", "a cache in the model's dtype"
        )
    yield Finding(
        "slow", "attention_bias runs unfused: all scores are written to memory", "Attention-24 with a float mask"
    )


def _attention(case: Case) -> Iterator[Finding]:
    if case.node.domain or not case.node.input:
        return
    mask = case.input("attn_mask")
    seen, new = case.dim(mask, -2), case.dim(case.input("Q"), -2)
    if mask and seen == 1 and new != 1 and not case.is_inside:
        yield Finding("fails", "the mask has one row for all new tokens, which is not broadcast", "Expand the mask")
    if case.provider != "cuda":
        return
    width = decode(case.dim(mask, -1)) if mask else None
    shown = case.dim(mask, -1) if mask else None
    if isinstance(shown, str) and width == 1:
        # No column but those of the call: all tokens are seen at once, and how many a caller says.
        message = f"a {shown} that is no multiple of {MASK_MULTIPLE} runs unfused under a mask"
        yield Finding("bounded", message, "pad the tokens to a multiple of 8")
    elif width is not None and width % MASK_MULTIPLE:
        message = f"a mask of {shown} columns is no multiple of {MASK_MULTIPLE} wide in decoding: unfused attention"
        yield Finding("slow", message, "pad keys and mask to a multiple of 8")
    queries, keys, values = (case.input(name) for name in ("Q", "K", "V"))
    sizes, heads = _head_sizes(case, queries, keys, values)
    if None not in sizes and sizes[0] != sizes[1]:
        if case.input("past_key"):
            message = f"keys of {sizes[0]} and values of {sizes[1]} over a past inside the op: unfused attention"
            yield Finding("slow", message, "TensorScatter and nonpad_kv_seqlen, or values padded to the keys' size")
        elif None not in heads and heads[0] != heads[1]:
            message = f"grouped heads with keys of {sizes[0]} and values of {sizes[1]}: unfused attention"
            yield Finding("slow", message, "no matter for one new token; expand keys and values for many")
    elif case.types.get(queries) == "float" and None not in heads and heads[0] != heads[1]:
        yield Finding("slow", "grouped heads in float32: unfused attention", "float16 or bfloat16")


def _head_sizes(case: Case, queries: str, keys: str, values: str) -> tuple[tuple[Dim, Dim], tuple[Dim, Dim]]:
    """((key size, value size), (query heads, key-value heads)), from four dimensions or from attributes."""
    shape = case.shapes.of(queries)
    if shape is not None and len(shape) == 4:
        return (case.dim(keys, -1), case.dim(values, -1)), (case.dim(queries, 1), case.dim(keys, 1))
    num_queries, num_keys = case.attribute("q_num_heads", None), case.attribute("kv_num_heads", None)
    widths = [case.dim(value, -1) for value in (keys, values)]
    sizes = [width // num_keys if isinstance(width, int) and num_keys else None for width in widths]
    return (sizes[0], sizes[1]), (num_queries, num_keys)


def _linear_attention(case: Case) -> Iterator[Finding]:
    if case.provider != "cuda" or case.node.domain != "com.microsoft":
        return
    state = case.input("past_state")
    kinds = {case.types.get(name) for name in (case.node.input[0], state) if name} - {None}
    if len(kinds) > 1:
        yield Finding(
            "fails", f"state and tokens have different types: {' and '.join(sorted(map(str, kinds)))}", "one type"
        )
    key, value, limits = case.dim(state, -2), case.dim(state, -1), LINEAR_ATTENTION[RELEASE]
    if not isinstance(key, int) or not isinstance(value, int):
        return
    if key in limits.tiled and value % limits.tiled_multiple == 0:
        return
    needed = 4 * key * value
    widths = " or ".join(map(str, limits.tiled))
    choice = f"keys of {widths} with values of a multiple of {limits.tiled_multiple} run everywhere"
    if needed > limits.bytes_anywhere:
        yield Finding(
            "fails", f"a state of {key} x {value} fails in prefill: it needs {needed >> 10} KiB a block", choice
        )
    elif needed > limits.bytes_everywhere:
        yield Finding(
            "bounded", f"a state of {key} x {value} needs {needed >> 10} KiB of shared memory a block", choice
        )


def _quantized_product(case: Case) -> Iterator[Finding]:
    largest, size = max(BLOCK_SIZES), case.attribute("block_size", 0)
    if case.provider == "cuda" and size > largest:
        yield Finding("fails", f"blocks of {size} weights fail for one token", f"blocks of up to {largest}")


def _moe(case: Case) -> Iterator[Finding]:
    if case.provider != "cpu":
        return
    if case.attribute("activation_type", "relu") == "swiglu" and case.attribute("swiglu_fusion", 0) != 1:
        yield Finding("fails", "the CPU kernel takes swiglu with swiglu_fusion 1 only", "interleave gate and up rows")
    if case.input("fc3_experts_weights"):
        yield Finding("fails", "the CPU kernel takes no third weight", "swiglu with swiglu_fusion 1")
    if not case.attribute("normalize_routing_weights", 0):
        message = "normalize_routing_weights 0 gives wrong numbers on the CPU of 1.31 between computed values"
        yield Finding("fails", message, "1, and logarithms of the weights as router logits")


_RULES: dict[str, Callable[[Case], Iterator[Finding]]] = {
    "GroupQueryAttention": _group_query,
    "Attention": _attention,
    "LinearAttention": _linear_attention,
    "MoE": _moe,
    "MatMulNBits": _quantized_product,
}
