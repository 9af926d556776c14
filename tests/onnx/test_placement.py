"""Where nodes go, what is copied and which limits a file meets, told without a GPU and without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

onnxruntime = pytest.importorskip("onnxruntime")

from archc.errors import ArchcError, CheckFailedError  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from archc_exporters.onnx.placement.check import check_provider, inspect, place, require_provider  # noqa: E402
from archc_exporters.onnx.placement.copies import copies  # noqa: E402
from archc_exporters.onnx.placement.live import has_device  # noqa: E402
from archc_exporters.onnx.placement.predict import predict  # noqa: E402
from archc_exporters.onnx.placement.report import Placement  # noqa: E402
from tests.onnx.awkward import AWKWARD, BF16, F16, F32, INT32, INT64, MS, X, Y, model, node, value  # noqa: E402
from tests.onnx.conftest import graph_of  # noqa: E402

pytestmark = [pytest.mark.onnx, pytest.mark.torch]


def placement(made: onnx.ModelProto, provider: str = "cuda") -> Placement:
    return place(made, Path("model.onnx"), provider)


def limits(made: onnx.ModelProto, provider: str = "cuda") -> list[tuple[str, str]]:
    return [(limit.severity, limit.message) for limit in placement(made, provider).limits]


@pytest.mark.parametrize("name", AWKWARD)
def test_nodes_go_where_the_cuda_provider_puts_them(name: str) -> None:
    case = AWKWARD[name]
    root = predict(case.model, "cuda")
    assert {site.name: site.reason for site in root.all_sites() if site.provider != "cuda"} == case.cpu
    assert sorted((copy.op, copy.value) for copy in copies(root)) == sorted(case.memcpy)


def test_weights_need_not_exist(tmp_path: Path) -> None:
    export(graph_of("kimi-linear"), tmp_path / "out", dtype="bfloat16", check=False)
    path = tmp_path / "out" / "model.onnx"
    before = inspect(path)
    (tmp_path / "out" / "model.onnx.data").unlink()
    after = inspect(path)
    assert (before.summary.files["model.onnx.data"] or 0) > 10_000
    assert after.summary.files == {"model.onnx.data": None}
    assert after.placement == before.placement
    assert after.placement.source == "the kernel registry of onnxruntime 1.31.1"


def test_an_op_that_no_kernel_takes_is_decomposed() -> None:
    made = model([node("Swish", "x", "y")], [value("x", F16)], [value("y", F16)])
    found = placement(made)
    assert [(part.op, part.body) for part in found.decomposed] == [("Swish", ("CastLike", "Mul", "Sigmoid", "Mul"))]
    assert found.nodes == {"Swish": {"cuda": 1}}
    assert [(limit.severity, limit.choice) for limit in found.limits] == [
        ("slow", "com.microsoft QuickGelu with its alpha, one kernel")
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "kimi-linear", "moe keys", "slopes"])
def test_the_cpu_table_says_which_files_a_cpu_session_loads(name: str, dtype: str, tmp_path: Path) -> None:
    export(graph_of(name), tmp_path / "out", dtype=dtype, check=False)
    path = tmp_path / "out" / "model.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        loads = True
    except Exception:  # onnxruntime raises a family of its own.
        loads = False
    found = check_provider(path, "cpu")
    assert loads == (dtype != "bfloat16")
    assert (found.objections() == []) == loads
    assert ("" in found.counts()) != loads


def group_query(type_: int = F16, *, head: int = 64, outputs: int = 3, extra: str = "", **attributes: Any):
    """GroupQueryAttention of 2 heads; ``extra`` fills the inputs from cos_cache on."""
    cache = ["b", 2, "c", head]
    inputs = [value(name, type_, ["b", "s", 2 * head]) for name in "qkv"]
    inputs += [value("pk", type_, cache), value("pv", type_, cache), value("n", INT32, ["b"]), value("t", INT32, [])]
    more = {name: value(name, type_, ["b", 2, "s", "c"]) for name in extra.split() if name != "-"}
    names = ["o", "npk", "npv"][:outputs]
    attention = node(
        "GroupQueryAttention",
        f"q k v pk pv n t {extra}",
        " ".join(names),
        domain=MS,
        **{"num_heads": 2, "kv_num_heads": 2, **attributes},
    )
    return model([attention], [*inputs, *more.values()], [value(name, type_, None) for name in names])


CHUNKS = ("bounded", "several new tokens over a past are refused at batch > 1")
BIAS = ("slow", "attention_bias runs unfused: all scores are written to memory")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (group_query(), []),
        (
            group_query(head=512),
            [("slow", "a head size of 512 is larger than 256: memory-efficient, not flash attention")],
        ),
        (group_query(head=576), [("fails", "a head size of 576 is larger than 512")]),
        (group_query(head=60), [("fails", "a head size of 60 is no multiple of 8")]),
        (group_query(outputs=1), [("fails", "it has no outputs present_key and present_value")]),
        (group_query(extra="- - - bias"), [BIAS]),
        (
            group_query(extra="- - - bias sink"),
            [("fails", "attention_bias with a sink is not implemented"), BIAS],
        ),
        (
            group_query(sliding_window_cache=1, local_window_size=8),
            [
                (
                    "bounded",
                    "a rolling cache takes no prompts of unequal length; on CUDA it has as many rows as the window, past and "
                    "present in one buffer",
                )
            ],
        ),
        (group_query(query_seqlens=1), [("fails", "attributes that 1.31 does not know: query_seqlens")]),
    ],
    ids=["plain", "head 512", "head 576", "head 60", "no presents", "bias", "bias and sink", "rolling", "1.32"],
)
def test_limits_of_group_query_attention(made: onnx.ModelProto, expected: list[tuple[str, str]]) -> None:
    found = limits(made)
    assert [limit for limit in found if limit != CHUNKS] == expected
    assert CHUNKS in found


def test_group_query_attention_in_float32_leaves_the_gpu_with_advice() -> None:
    found = placement(group_query(F32))
    (away,) = found.away
    assert (away.provider, away.reason) == ("cpu", "no-kernel")
    (objection,) = found.objections()
    assert "leaves the GPU: T is float, and kernels take bfloat16, float16" in objection
    assert "instead: float16 or bfloat16; in float32 TensorScatter and Attention-24" in objection


def linear_attention(key: int, width: int, state: int = F32):
    inputs = [value("q", F32, ["b", "s", key]), value("k", F32, ["b", "s", key]), value("v", F32, ["b", "s", width])]
    inputs += [value("h", state, ["b", 1, key, width])]
    made = node(
        "LinearAttention", "q k v h", "y hn", domain=MS, q_num_heads=1, kv_num_heads=1, update_rule="linear", scale=1.0
    )
    return model([made], inputs, [value("y", F32, None), value("hn", state, None)])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (linear_attention(128, 128), []),
        (linear_attention(64, 512), []),
        (linear_attention(96, 96), []),
        (linear_attention(192, 128), [("bounded", "a state of 192 x 128 needs 96 KiB of shared memory a block")]),
        (linear_attention(256, 256), [("fails", "a state of 256 x 256 fails in prefill: it needs 256 KiB a block")]),
        (linear_attention(128, 128, F16), [("fails", "state and tokens have different types: float and float16")]),
    ],
)
def test_limits_of_linear_attention(made: onnx.ModelProto, expected: list[tuple[str, str]]) -> None:
    assert [limit for limit in limits(made) if limit[0] != "leaves the GPU"] == expected


def attention(
    *, width: int | str = "c", rows: int | str = "s", heads: tuple[int, int] = (4, 4), sizes=(64, 64), past=False
):
    """Attention-24 in float16 with a mask of ``width`` columns, over a past inside the op or not."""
    inputs = [value("q", F16, ["b", heads[0], "s", sizes[0]]), value("k", F16, ["b", heads[1], "c", sizes[0]])]
    inputs += [value("v", F16, ["b", heads[1], "c", sizes[1]]), value("m", F16, ["b", 1, rows, width])]
    names, outputs = "q k v m", ["y"]
    if past:
        names, outputs = "q k v m pk pv", ["y", "npk", "npv"]
        inputs += [value("pk", F16, ["b", heads[1], "p", sizes[0]]), value("pv", F16, ["b", heads[1], "p", sizes[1]])]
    made = node("Attention", names, " ".join(outputs))
    return model([made], inputs, [value(name, F16, None) for name in outputs])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (attention(width="capacity"), []),
        (
            attention(width=130),
            [("slow", "a mask of 130 columns is no multiple of 4 wide in decoding: unfused attention")],
        ),
        (attention(rows=1), [("fails", "the mask has one row for all new tokens, which is not broadcast")]),
        (
            attention(sizes=(192, 128), past=True),
            [("slow", "keys of 192 and values of 128 over a past inside the op: unfused attention")],
        ),
        (
            attention(heads=(4, 1), sizes=(576, 512)),
            [("slow", "grouped heads with keys of 576 and values of 512: unfused attention")],
        ),
    ],
    ids=["fused", "mask 130", "one row", "past", "absorbed"],
)
def test_limits_of_attention(made: onnx.ModelProto, expected: list[tuple[str, str]]) -> None:
    assert limits(made) == expected


@pytest.mark.parametrize(("ring", "is_slow"), [(9, True), (7, False)])
def test_the_width_of_a_computed_mask_is_followed_through_the_graph(ring: int, is_slow: bool) -> None:
    # A mask over [ring | new tokens], from positions that are counted in the graph; one token sees ring + 1 columns.
    steps = [
        node("Shape", "ids", "count1", start=1, end=2),
        node("Squeeze", "count1 axis0", "count"),
        node("Range", "zero count one", "index"),
        node("Unsqueeze", "index axis0", "here", name="here"),
        node("Concat", "held here", "keys", axis=1),
        node("Unsqueeze", "keys axis1", "columns", name="columns"),
        node("Unsqueeze", "here axis2", "rows", name="rows"),
        node("LessOrEqual", "columns rows", "seen"),
        node("Where", "seen open shut", "mask3"),
        node("Unsqueeze", "mask3 axis1", "mask", name="mask"),
        node("Attention", "q k v mask", "y"),
    ]
    axes: dict[str, Any] = {"axis0": [0], "axis1": [1], "axis2": [2], "zero": 0, "one": 1}
    floats = {"open": np.float16(0), "shut": np.float16(-65504)}
    inputs = [value("ids", INT64, ["batch", "seq"]), value("q", F16, ["batch", 4, "seq", 64])]
    inputs += [value(name, F16, ["batch", 4, "total", 64]) for name in "kv"]
    made = model(steps, inputs, [value("y", F16, None)], held=np.zeros((1, ring), np.int64), **axes, **floats)
    message = f"a mask of seq + {ring} columns is no multiple of 4 wide in decoding: unfused attention"
    assert limits(made) == ([("slow", message)] if is_slow else [])


def moe(**attributes: Any):
    inputs = [value("x", F32, ["n", 16]), value("r", F32, ["n", 4])]
    made = node("MoE", "x r up - down", "y", domain=MS, k=2, **attributes)
    return model([made], inputs, [Y], up=np.zeros((4, 16, 16), "f4"), down=np.zeros((4, 16, 8), "f4"))


def test_what_runs_on_cuda_alone_is_found_for_the_cpu() -> None:
    swiglu = {"activation_type": "swiglu", "normalize_routing_weights": 1}
    assert limits(moe(**swiglu, swiglu_fusion=1), "cpu") == []
    assert limits(moe(**swiglu, swiglu_fusion=2), "cuda") == []
    assert limits(moe(**swiglu, swiglu_fusion=2), "cpu") == [
        ("fails", "the CPU kernel takes swiglu with swiglu_fusion 1 only")
    ]
    (wrong,) = limits(moe(activation_type="silu"), "cpu")
    assert wrong[0] == "fails"
    assert "wrong numbers" in wrong[1]
    normed = group_query(extra="- - - - - - - nq nk")
    assert ("fails", "the CPU kernel refuses q_norm_weight and k_norm_weight") in limits(normed, "cpu")
    assert all(severity != "fails" for severity, _ in limits(normed, "cuda"))


def test_ops_and_versions_of_later_releases_are_found() -> None:
    made = model([node("SwiGLU", "x", "y", domain=MS)], [X], [Y])
    (limit,) = placement(made).limits
    assert (limit.severity, limit.choice) == ("fails", "QuickGelu with alpha 1, and Mul")
    assert "knows no com.microsoft.SwiGLU" in limit.message
    late = model([node("Relu", "x", "y")], [X], [Y], opset=27)
    late.ir_version = 14
    assert [message for _, message in limits(late)] == [
        "opset 27: onnxruntime 1.31.1 reads up to 26",
        "IR version 14: onnxruntime 1.31.1 reads up to 13",
    ]


@pytest.mark.parametrize("size", [32, 128, 256])
def test_blocks_of_integer_weights_are_judged_by_their_size(size: int) -> None:
    stored = {"w": np.zeros((8, 512 // size, size // 2), np.uint8), "scales": np.ones(8 * 512 // size, np.float16)}
    product = node("MatMulNBits", "x w scales", "y", domain=MS, K=512, N=8, bits=4, block_size=size)
    found = limits(model([product], [value("x", F16, ["n", 512])], [value("y", F16, None)], **stored))
    assert found == ([("fails", "blocks of 256 weights fail for one token")] if size > 128 else [])


def test_ops_that_need_cudnn_are_named() -> None:
    made = model([node("ReduceMax", "x", "y", keepdims=1)], [X], [Y])
    assert limits(made) == [("bounded", "fails at run time where cuDNN is not installed")]


def test_types_follow_the_graph_where_the_file_states_none() -> None:
    steps = [
        node("Cast", "x", "h", to=BF16),
        node("Split", "h", "l r", axis=-1, num_outputs=2),
        node("QuickGelu", "l", "g", domain=MS, alpha=1.0),
        node("Mul", "g r", "m"),
        node("TopK", "m k", "best i"),
        node("Cast", "best", "y", to=F32, name="back"),
    ]
    made = model(steps, [X], [Y, value("i", INT64, None)], k=[2])
    from archc_exporters.onnx.placement.element_types import element_types

    types = element_types(made)
    assert [types[name] for name in ("h", "l", "r", "g", "m", "best", "i")] == ["bfloat16"] * 6 + ["int64"]
    assert placement(made).counts() == {"cuda": 6}


def test_functions_of_the_file_itself_are_looked_into(tmp_path: Path) -> None:
    body = [node("Relu", "a", "b"), node("Hardmax", "b", "c")]
    function = onnx.helper.make_function("mine", "Both", ["a"], ["c"], body, [onnx.helper.make_opsetid("", 24)])
    made = model([node("Both", "x", "y", domain="mine")], [X], [Y])
    made.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    made.functions.append(function)
    onnx.save(made, tmp_path / "model.onnx")
    assert check_provider(tmp_path / "model.onnx", "cuda").nodes == {"Hardmax": {"cpu": 1}, "Relu": {"cuda": 1}}


def test_sequences_have_types_too() -> None:
    steps = [
        node("SequenceEmpty", "", "s", dtype=F16),
        node("SequenceInsert", "s x", "t"),
        node("SequenceAt", "t zero", "y"),
    ]
    found = placement(model(steps, [value("x", F16)], [value("y", F16, None)], zero=0))
    assert found.nodes == {op: {"cuda": 1} for op in ("SequenceAt", "SequenceEmpty", "SequenceInsert")}


def test_a_file_that_must_run_on_a_provider_is_refused_with_all_reasons(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(AWKWARD["an op without a CUDA kernel in the middle"].model, path)
    with pytest.raises(
        CheckFailedError, match=r"(?s)does not run on cuda.*Hardmax leaves the GPU: no kernel is registered"
    ):
        require_provider(path, "cuda")
    assert require_provider(path, "cpu").counts() == {"cpu": 3}


def test_an_export_that_would_leave_its_provider_is_not_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = export(graph_of("llama"), out, check=False, check_provider="cuda")
    assert report.placement is not None
    assert report.placement.away == ()
    assert sum(report.placement.counts().values()) == sum(report.nodes.values())
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(CheckFailedError, match="MatMul fails: T is bfloat16"):
        export(graph_of("llama"), out, dtype="bfloat16", check=False, check_provider="cpu")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("content", [None, b"", b"no model", b"\x08\x0a"], ids=["missing", "empty", "text", "no graph"])
def test_what_is_no_model_is_an_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArchcError, match=r"model\.onnx"):
        check_provider(path, "cuda")
    if content is not None:
        with pytest.raises(ArchcError, match="rocm"):
            place(AWKWARD["a Loop"].model, path, "rocm")


@pytest.mark.gpu
@pytest.mark.skipif(not has_device(), reason="no CUDA device")
def test_a_session_on_a_gpu_agrees_with_the_table(tmp_path: Path) -> None:
    export(graph_of("kimi-linear"), tmp_path / "out", check=False)
    path = tmp_path / "out" / "model.onnx"
    found = check_provider(path, "cuda")
    assert found.source.startswith("a session of onnxruntime")
    assert found.away == ()
    (tmp_path / "out" / "model.onnx.data").unlink()
    table = check_provider(path, "cuda")
    assert {node.name for node in found.off} <= {node.name for node in table.off}
    assert len(found.memcpy) == len(table.memcpy)
