"""What an export has written, in plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import onnx_ir as ir

from archc.graph.graph import CAPACITY_MULTIPLE, Graph
from archc_exporters.onnx.cache_dtype import cache_dtype, cache_form
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.placement.report import Placement
from archc_exporters.onnx.quality import QualityLoss
from archc_exporters.onnx.quantize import QuantizedWeights
from archc_exporters.onnx.states import tokens_a_row
from archc_exporters.onnx.weights import DTYPES, NUMPY_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInput:
    """One cache: its input, the state it comes from, symbolic shape, and what it costs a token or a sequence.

    Attributes:
        bytes_per_token: bytes a token of the capacity and a sequence, rounded down where a row comes every few tokens; 0 for a
            cache of fixed size.
        bytes_per_sequence: bytes a sequence whatever its length; 0 for a cache that grows.
        bytes_per_source_token: bytes a token of the encoder and a sequence; 0 for what a decoder keeps of its own text.
    """

    name: str
    state: str
    dtype: str
    shape: tuple[int | str, ...]
    bytes_per_token: int
    bytes_per_sequence: int
    bytes_per_source_token: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The form in which an op was lowered, with the reason, and how many nodes of the graph took it."""

    op: str
    form: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Everything that a reader of the file should know beside the file."""

    name: str
    dtype: str
    files: dict[str, int]
    """path -> bytes."""
    weight_bytes: int
    opsets: dict[str, int]
    ir_version: int
    onnxruntime: str
    max_model_len: int
    capacity: str
    nodes: dict[str, int]
    """op type -> nodes, branches of If included; op types of com.microsoft are written with their domain."""
    caches: tuple[CacheInput, ...]
    choices: tuple[Choice, ...]
    checks: tuple[str, ...]
    notes: tuple[str, ...]
    quantization: QuantizedWeights | None = None
    quality: QualityLoss | str = ""
    """What rounding of weights or caches costs the logits, or why that was not measured; empty where nothing is rounded."""
    comparisons: tuple[dict[str, Any], ...] = ()
    """A judge's figures, a way of cutting tokens into calls each; empty where nothing was compared."""
    placement: Placement | None = None
    """Which provider takes which nodes; None where that was not asked."""
    seconds_writing: float = 0.0
    seconds_checking: float = 0.0
    check_peak_bytes: int | None = None
    """Most memory of the processes that ran the file; None where none ran, or the system doesn't say."""

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return asdict(self) | {"placement": None if self.placement is None else self.placement.to_json()}


def count_nodes(*models: ir.Model) -> dict[str, int]:
    """op type -> nodes of all of them, most frequent first."""
    counts = Counter(
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for model in models
        for node in model.graph.all_nodes()
    )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def capacity_formula(graph: Graph) -> str:
    """How many rows a full cache has, in words that a caller can compute with."""
    reserved = graph.reserved_rows()
    inner = f"(max_model_len + {reserved})" if reserved else "max_model_len"
    return f"ceil({inner} / {CAPACITY_MULTIPLE}) * {CAPACITY_MULTIPLE}"


def cache_inputs(ctx: Lowering) -> tuple[CacheInput, ...]:
    """The caches in the order of the file's inputs."""
    found: list[CacheInput] = []
    states = ctx.graph.states()
    names = {past: state for state, past in ctx.state_names.items()}
    for past, value in ctx.pasts.items():
        assert value.shape is not None
        assert value.dtype is not None
        dims = [dim if isinstance(dim, int) else str(dim) for dim in value.shape.dims]
        tokens = next(filter(None, map(tokens_a_row, dims)), None)
        grows, of_source = tokens is not None, "source" in dims
        # Of a rolling cache, whose rows another runtime counts, those that the window needs.
        counted = dims if grows or of_source else (*states[names[past]].allocated[:-1], dims[-1])
        size = prod(dim for dim in counted if isinstance(dim, int)) * NUMPY_DTYPES[value.dtype].itemsize
        found.append(
            CacheInput(
                name=past,
                state=names[past],
                dtype=NUMPY_DTYPES[value.dtype].name,
                shape=tuple(dims),
                bytes_per_token=0 if tokens is None else size // tokens,
                bytes_per_sequence=0 if grows or of_source else size,
                bytes_per_source_token=size if of_source else 0,
            )
        )
    return tuple(found)


def notes(ctx: Lowering) -> tuple[str, ...]:
    """What the file does otherwise than the spec says."""
    lines = list(ctx.remarks)
    other = sorted(
        {
            state.dtype
            for state in ctx.graph.states().values()
            if cache_form(state, ctx.target) is None
            and cache_dtype(state, ctx.target) in DTYPES
            and ctx.resolve(cache_dtype(state, ctx.target)) != ctx.state_dtype(state)
        }
    )
    if other:
        lines.append(
            f"the cache policy says {', '.join(other)}; here keys, values and convolution columns have the model's dtype "
            "and recurrent states float32, because a kernel wants one dtype"
        )
    if ctx.graph.mtp is not None:
        lines.append("the extra prediction layers (mtp) are not exported")
    return tuple(lines)
