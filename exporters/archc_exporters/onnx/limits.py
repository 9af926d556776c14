"""What onnxruntime's kernels take, by version and provider: the table that decides between forms of an op.

Facts of release 1.31: registered types, input checks and the kernels' own refusals. A form that the table refuses is
never written; the report repeats the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from archc.ops.attention import Attention
from archc.ops.shared_attention import SharedAttention
from archc_exporters.onnx.target import FLOAT8, Provider, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueryLimits:
    """GroupQueryAttention of one version on one provider.

    Attributes:
        dtypes: of queries, keys and values.
        head_multiple: head sizes are multiples of it.
        head_max: largest head size, None where there is no limit.
        turned_multiple: channels that turn inside the kernel are a multiple of it.
        batched_chunks: whether several new tokens over a past are taken at batch > 1.
        cache_dtypes: of keys and values that are rounded as they are cached.
        rounded_head_max: largest head size over such a cache, None where there is no limit.
    """

    dtypes: tuple[str, ...]
    head_multiple: int
    head_max: int | None
    turned_multiple: int
    batched_chunks: bool
    cache_dtypes: tuple[str, ...]
    rounded_head_max: int | None


GROUP_QUERY: dict[tuple[tuple[int, int], Provider], GroupQueryLimits] = {
    ((1, 31), "cpu"): GroupQueryLimits(
        dtypes=("float32", "float16"),
        head_multiple=8,
        head_max=None,
        turned_multiple=16,
        batched_chunks=False,
        cache_dtypes=("int8", "int4"),
        rounded_head_max=None,
    ),
    # Above 512 the kernel fails when it runs; up to 256 it is flash attention, beyond that memory-efficient.
    ((1, 31), "cuda"): GroupQueryLimits(
        dtypes=("float16", "bfloat16"),
        head_multiple=8,
        head_max=512,
        turned_multiple=16,
        batched_chunks=False,
        cache_dtypes=("int8", "int4", FLOAT8),
        rounded_head_max=256,
    ),
}


def takes_batched_chunks(model: ir.Model) -> bool:
    """Whether a file takes several new tokens over a past at batch > 1: GroupQueryAttention of 1.31 does not."""
    return all(node.op_type != "GroupQueryAttention" for node in model.graph.all_nodes())


def can_turn_inside(turned: int, target: Target) -> bool:
    """Whether GroupQueryAttention can rotate so many channels of a head itself."""
    return turned % GROUP_QUERY[target.onnxruntime, target.provider].turned_multiple == 0


def group_query_objection(op: Attention, target: Target) -> str:
    """Why GroupQueryAttention can't compute ``op``; empty where it can."""
    limits = GROUP_QUERY[target.onnxruntime, target.provider]
    if isinstance(op, SharedAttention):
        return "it writes rows of its own, and these are an earlier layer's"
    if op.slopes is not None or op.has_bias:
        return "its bias would run unfused on CUDA"
    if op.has_prefix:
        return "it lets no token see a later one"
    if op.key_dim != op.value_dim:
        return f"keys of {op.key_dim} and values of {op.value_dim} differ in width"
    if op.key_dim % limits.head_multiple:
        return f"a head of {op.key_dim} is no multiple of {limits.head_multiple}"
    if limits.head_max is not None and op.key_dim > limits.head_max:
        return f"a head of {op.key_dim} is larger than {limits.head_max}"
    if target.form_dtype not in limits.dtypes:
        return f"{target.provider} has no kernel for it in {target.form_dtype}"
    if target.batched_chunks and not limits.batched_chunks:
        return "it refuses several new tokens over a past at batch > 1"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttentionLimits:
    """LinearAttention of one version on CUDA, whose prompts keep a state of key_dim x value_dim floats in shared memory.

    Attributes:
        tiled: key widths for which it has a tiled kernel, that needs little memory.
        tiled_multiple: value widths of that kernel are multiples of it.
        bytes_everywhere: shared memory a block that every supported device has.
        bytes_anywhere: the most that any device has.
    """

    tiled: tuple[int, ...]
    tiled_multiple: int
    bytes_everywhere: int
    bytes_anywhere: int


LINEAR_ATTENTION: dict[tuple[int, int], LinearAttentionLimits] = {
    (1, 31): LinearAttentionLimits(
        tiled=(64, 128), tiled_multiple=32, bytes_everywhere=64 << 10, bytes_anywhere=227 << 10
    ),
}


def linear_attention_limit(key_dim: int, value_dim: int, target: Target) -> tuple[str, str]:
    """(why LinearAttention can't run on CUDA; what to know of where it can), each empty where there is nothing to say."""
    limits = LINEAR_ATTENTION[target.onnxruntime]
    if target.provider != "cuda" or (key_dim in limits.tiled and value_dim % limits.tiled_multiple == 0):
        return "", ""
    needed = 4 * key_dim * value_dim
    what = f"linear attention heads of {key_dim} x {value_dim} need {needed} bytes of shared memory on CUDA"
    widths = " or ".join(str(width) for width in limits.tiled)
    legal = f"key_dim {widths} with value_dim a multiple of {limits.tiled_multiple} runs everywhere"
    if needed > limits.bytes_anywhere:
        return (
            f"{what}, more than any device has, and would fail at the first prompt; {legal}; so does provider cpu",
            "",
        )
    if needed > limits.bytes_everywhere:
        return "", f"{what}; devices with less refuse long prefills ({legal})"
    return "", ""


def value_pieces(key_dim: int, value_dim: int, target: Target) -> int | None:
    """How many pieces a head's values are cut into: one where some device bears it whole, else the fewest that all bear.

    Where no cut is borne by all, the fewest that some bear; None where not even a column of the state is.
    """
    if not linear_attention_limit(key_dim, value_dim, target)[0]:
        return 1
    cuts = [pieces for pieces in range(2, value_dim + 1) if value_dim % pieces == 0]
    limits = {cut: linear_attention_limit(key_dim, value_dim // cut, target) for cut in cuts}
    everywhere = (cut for cut in cuts if limits[cut] == ("", ""))
    anywhere = (cut for cut in cuts if not limits[cut][0])
    return next(everywhere, next(anywhere, None))
