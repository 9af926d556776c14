"""Keys and values as 8- or 4-bit numbers: which caches may be, what dtype an input then has, and its scales.

GroupQueryAttention rounds what it writes and multiplies by the scale what it reads; nothing else in onnxruntime does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from archc.errors import ArchcError
from archc.graph.graph import Graph, join, walk_scopes
from archc.ir.op import Op
from archc.ir.values import MODEL_DTYPE, Param, State
from archc.ops.attention import Attention
from archc_exporters.onnx.arrays import Array
from archc_exporters.onnx.limits import GROUP_QUERY, group_query_objection
from archc_exporters.onnx.target import FLOAT8, Target
from archc_exporters.onnx.weights import WeightSource

_LAYER = re.compile(r"\.(\d+)\.")
_ROLLING_INT4_HEAD = 32
_PLAIN = (MODEL_DTYPE, "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class CacheForm:
    """A rounded cache: bits of a number, dtype of the tensor, the largest number that a scale maps the largest value to."""

    bits: int
    dtype: ir.DataType
    largest: float


FORMS = {
    "int8": CacheForm(8, ir.DataType.INT8, 127),
    # Two a byte, the even channel in the low half, 8 added to each.
    "int4": CacheForm(4, ir.DataType.UINT8, 7),
    FLOAT8: CacheForm(8, ir.DataType.FLOAT8E4M3FN, 448),
}


def cache_dtype(state: State, target: Target) -> str:
    """dtype of a state's cache: what the target says of keys, values, latents and columns, else the cache policy."""
    if state.role == "recurrent" or target.kv_cache_dtype is None:
        return state.dtype
    return target.kv_cache_dtype


def cache_form(state: State, target: Target) -> CacheForm | None:
    """How a state's cache is rounded; None where it is not."""
    return FORMS.get(cache_dtype(state, target))


def rounded_caches(graph: Graph, target: Target) -> dict[str, CacheForm]:
    """Full name of a state -> form, of those whose cache is rounded."""
    forms = {name: cache_form(state, target) for name, state in graph.states().items()}
    return {name: form for name, form in forms.items() if form is not None}


def check_caches(graph: Graph, target: Target) -> None:
    """Refuse what no kernel can hold, before anything is made.

    Raises:
        ArchcError: caches are to be rounded, or have a dtype, that their layers can't; all of them, with reasons.
    """
    problems: dict[str, list[str]] = {}
    for scope, node in walk_scopes(graph.root, ""):
        for state in node.states.values():
            wanted = cache_dtype(state, target)
            if wanted in _PLAIN:
                continue
            objection = _objection(node.op, state, wanted, target)
            if objection:
                problems.setdefault(f"{wanted}: {objection}", []).append(join(scope, state.name))
    if not problems:
        return
    lines = [f"{_folded(names)} can't be {reason}" for reason, names in problems.items()]
    raise ArchcError(
        "some caches can't be rounded\n  "
        + "\n  ".join(lines)
        + "\n  what can: keys and values of causal attention over a full cache; give such mixers alone cache dtype int8"
    )


def _folded(names: Sequence[str]) -> str:
    """Names that differ in their layer alone as one, with the layers behind it."""
    groups: dict[str, list[str]] = {}
    for name in names:
        layer = _LAYER.search(name)
        groups.setdefault(_LAYER.sub(".N.", name, count=1), []).append("" if layer is None else layer[1])
    return ", ".join(
        pattern if layers == [""] else f"{pattern} (N = {', '.join(layers)})" for pattern, layers in groups.items()
    )


def _objection(op: Op, state: State, wanted: str, target: Target) -> str:
    if wanted not in FORMS:
        return f"no kernel has it; legal: {', '.join(FORMS)}"
    if not isinstance(op, Attention) or state.role != "kv":
        return "only GroupQueryAttention rounds what it caches, and this is not keys or values of heads"
    by_kernel = target.io == "genai" or target.sliding_window_cache
    if op.ring_rows() is not None and not (by_kernel and op.window is not None and not op.sink_tokens):
        return "a ring of rows goes by Attention, which rounds nothing"
    objection = group_query_objection(op, target)
    if objection:
        return f"it takes GroupQueryAttention, but {objection}"
    limits = GROUP_QUERY[target.onnxruntime, target.provider]
    if wanted not in limits.cache_dtypes:
        return f"{target.provider} has no kernel; legal: {', '.join(limits.cache_dtypes)}"
    if limits.rounded_head_max is not None and op.key_dim > limits.rounded_head_max:
        return f"a head of {op.key_dim} is larger than {limits.rounded_head_max}"
    rolls = op.window is not None and target.sliding_window_cache
    if rolls and FORMS[wanted].bits == 4 and op.key_dim % _ROLLING_INT4_HEAD:
        return f"in a rolling cache a head should be a multiple of {_ROLLING_INT4_HEAD}, and is {op.key_dim}"
    return ""


class ScaledWeights:
    """Weights together with the scales of rounded caches.

    Attributes:
        scales: name of a cache input -> step of each channel, float32 (1, K, 1, H).
        source: the weights.
    """

    def __init__(self, source: WeightSource, scales: Mapping[str, Array]) -> None:
        self.source, self.scales = source, scales

    def read(self, name: str, param: Param) -> Array:
        return self.source.read(name, param)

    def release(self, name: str) -> None:
        self.source.release(name)


def scale_of(weights: WeightSource, cache: str, shape: tuple[int, ...]) -> Array:
    """The steps of a cache's channels.

    Raises:
        ArchcError: they were not calibrated.
    """
    scales = weights.scales if isinstance(weights, ScaledWeights) else {}
    if cache not in scales:
        raise ArchcError(f"{cache} is rounded, but its scale is not known: the caches were not calibrated")
    if scales[cache].shape != shape:
        raise ArchcError(f"the scale of {cache} is {list(scales[cache].shape)}, not {list(shape)}")
    return scales[cache].astype(np.float32)
