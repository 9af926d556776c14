"""The judge of --verify: torch on the file's own weights, bounds by dtype, and faults that it must see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from archc.errors import CheckFailedError  # noqa: E402
from archc.testing import torch_judge  # noqa: E402
from archc.testing.parity import conversations, difference  # noqa: E402
from archc.testing.torch_judge import Comparison, disturbed, judge, plan  # noqa: E402
from archc.torch_backend.build import build  # noqa: E402
from archc.torch_backend.weights import save_weights  # noqa: E402
from archc_exporters.onnx import lower  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from tests.onnx.conftest import ARCHITECTURES, draw, graph_of  # noqa: E402

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

FAMILIES = ("llama", "gpt-oss", "deepseek-v3", "kimi-linear", "qwen3-next")


def lively(graph: Any, folder: Path, dtype: str = "float32") -> Path:
    """A file of weights that matter, rounded to a dtype."""
    model = build(graph, device="cpu", seed=0)
    draw(model, getattr(torch, dtype))
    return save_weights(model, folder / "weights.safetensors")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_is_torch(name: str, tmp_path: Path) -> None:
    graph = graph_of(name)
    weights = lively(graph, tmp_path)
    report = export(graph, tmp_path / "out", provider="cpu", dtype="float32", weights=weights, check=False, judge=judge)
    assert [each["batch"] for each in report.comparisons] == [2] * 4
    assert max(each["relative"] for each in report.comparisons) < 2e-5
    assert report.comparisons[-1]["way"] == "28 decode steps after 12"


@pytest.mark.parametrize("name", FAMILIES)
def test_float16_is_torch_within_its_rounding_and_random_weights_do(name: str, tmp_path: Path) -> None:
    report = export(graph_of(name), tmp_path, dtype="float16", check=False, judge=judge)
    # Bounds come from steps eight times as large, so a sound file is several times below.
    for each in report.comparisons:
        assert 0 < each["mean_abs"] < each["mean_limit"] / 2


@pytest.mark.parametrize("name", ["llama", "kimi-linear"])
def test_bfloat16_is_judged_by_a_twin_of_few_layers_with_the_files_weights(name: str, tmp_path: Path) -> None:
    graph = graph_of("llama", "stack.num_layers=5") if name == "llama" else graph_of(name)
    weights = lively(graph, tmp_path, "bfloat16")
    report = export(graph, tmp_path / "out", dtype="bfloat16", weights=weights, judge=judge)
    assert len(report.comparisons) == 4
    assert any("float32 twin, 2 of 5" in line or "float32 twin, 3 of 3" in line for line in report.checks)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["archc.json", "model.onnx", "model.onnx.data"]


def test_a_file_without_weights_is_judged_by_a_twin_with_random_ones(tmp_path: Path) -> None:
    report = export(graph_of("deepseek-v3"), tmp_path, no_weights=True, judge=judge)
    assert len(report.comparisons) == 4


def test_the_head_on_the_last_token_alone_is_compared_there(tmp_path: Path) -> None:
    report = export(graph_of("llama"), tmp_path, dtype="float32", prune_head=True, check=False, judge=judge)
    prefill = report.comparisons[0]
    assert (prefill["batch"], prefill["tokens"]) == (2, 2)
    assert prefill["relative"] < 2e-5


def test_a_rolling_cache_is_compared_without_rows_of_two_lengths(tmp_path: Path) -> None:
    report = export(graph_of("gpt-oss"), tmp_path, sliding_window_cache=True, judge=judge)
    assert [each["way"].split()[0] for each in report.comparisons] == ["prefill", "chunk", "28"]


def test_integer_weights_give_figures_without_limits(tmp_path: Path) -> None:
    graph = graph_of("llama", "embedding.hidden_size=128", "ffns.mlp.intermediate_size=256")
    report = export(graph, tmp_path, provider="cpu", dtype="float32", quant="int8", judge=judge)
    assert [each["max_limit"] for each in report.comparisons] == [None] * 4
    assert 2e-5 < report.comparisons[0]["relative"] < 0.2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_weights_than_the_files_are_seen(dtype: str, tmp_path: Path) -> None:
    graph = graph_of("llama")
    weights = lively(graph, tmp_path, dtype)

    def deceived(file: Any) -> Any:
        def read(name: str) -> Any:
            return file.read(name) * (1.05 if name == "layers.1.ffn.up_proj.weight" else 1)

        return judge(replace(file, read=read))

    with pytest.raises(CheckFailedError, match=rf"(?s)the file's outputs are not torch's \({dtype}\).*prefill.*decode"):
        export(graph, tmp_path / "out", dtype=dtype, weights=weights, judge=deceived)
    assert not (tmp_path / "out").exists()


def scaled_output(real: Callable[..., Any]) -> Callable[..., Any]:
    def lowering(ctx: Any, node: Any, *inputs: Any) -> Any:
        result = real(ctx, node, *inputs)
        return ctx.op("Mul", result, ctx.scalar(1.01)) if node.name == "o_proj" else result

    return lowering


def turned_keys(real: Callable[..., Any]) -> Callable[..., Any]:
    """Queries and keys swapped: shapes agree where there are as many heads."""

    def lowering(ctx: Any, node: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return real(ctx, node, k, q, v, *rest)

    return lowering


@pytest.mark.parametrize(
    ("op", "wrong", "overrides"),
    [("linear", scaled_output, ()), ("attention", turned_keys, ("mixers.gqa.num_kv_heads=4",))],
    ids=["scaled output", "queries for keys"],
)
def test_a_wrong_lowering_is_seen_and_the_earlier_export_stays(
    op: str, wrong: Callable[..., Any], overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, out = graph_of("llama", *overrides), tmp_path / "out"
    weights = lively(graph, tmp_path)
    export(graph, out, dtype="float32", weights=weights, check=False)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    real = lower._lowering_of
    monkeypatch.setattr(
        lower,
        "_lowering_of",
        lambda scope, node: (wrong if node.op.op_name == op else lambda same: same)(real(scope, node)),
    )
    with pytest.raises(CheckFailedError, match="the file's outputs are not torch's"):
        export(graph, out, dtype="float32", weights=weights, judge=judge)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_op_that_needs_the_past_is_seen_in_decode(tmp_path: Path) -> None:
    """A window one token too short gives the same prefill of few tokens and another decode."""
    graph = graph_of("gpt-oss")
    shorter = graph_of("gpt-oss", "mixers.near.sliding_window=4")
    weights = lively(graph, tmp_path)

    def judged_as_another(file: Any) -> Any:
        return judge(replace(file, graph=graph))

    with pytest.raises(CheckFailedError, match="decode"):
        export(shorter, tmp_path / "out", dtype="float32", weights=weights, judge=judged_as_another)


def file(name: str, *overrides: str, max_model_len: int = 4096, ragged: bool = True) -> Any:
    graph = graph_of(name, *overrides)
    return SimpleNamespace(graph=graph, max_model_len=max_model_len, ragged_prompts=ragged)


def counted(calls: Any) -> list[int]:
    return [sum(row) for row in zip(*calls, strict=True)]


def test_tokens_are_cut_in_four_ways() -> None:
    ids, ways = plan(file("llama"))
    assert ids.shape == (2, 44)
    assert list(ways) == [
        "prefill of 44",
        "chunk of 12 over 12, 1 more",
        "rows of 12 and 7, 2 more",
        "32 decode steps after 12",
    ]
    assert [counted(calls) for calls in ways.values()] == [[44, 44], [25, 25], [14, 9], [44, 44]]


def test_a_prompt_is_as_long_as_the_window_so_that_decode_wraps() -> None:
    ids, ways = plan(file("gpt-oss", "mixers.near.sliding_window=128"))
    assert ids.shape == (2, 122 + 32)
    assert "32 decode steps after 122" in ways
    # Windows that no output can be afforded for are not gone around.
    wide = "tokenizer.vocab_size=200000"
    assert plan(file("gpt-oss", "mixers.near.sliding_window=4096", wide, max_model_len=1 << 20))[0].shape == (2, 44)


@pytest.mark.parametrize("longest", [1, 2, 3, 5, 20, 44, 45])
def test_short_models_get_what_fits(longest: int) -> None:
    ids, ways = plan(file("llama", max_model_len=longest))
    assert ids.shape[1] <= longest
    for calls in ways.values():
        assert max(counted(calls)) <= ids.shape[1]
        assert all(min(row) >= 1 for row in calls)


def test_rows_of_two_lengths_are_left_out_where_the_file_refuses_them() -> None:
    assert not any(way.startswith("rows") for way in plan(file("llama", ragged=False))[1])


def test_padding_repeats_a_token_and_is_not_compared() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    calls = ((3, 1), (1, 2))
    cut = conversations(ids, {"ragged": calls})["ragged"]
    assert [tokens.tolist() for tokens, _ in cut] == [[[1, 2, 3], [5, 5, 5]], [[4, 1], [6, 7]]]
    whole = torch.arange(16.0).view(2, 4, 2)
    outputs = [np.full((2, 3, 2), 99.0), np.full((2, 2, 2), 99.0)]
    outputs[0][0], outputs[0][1, :1] = whole[0, :3], whole[1, :1]
    outputs[1][0, :1], outputs[1][1] = whole[0, 3:], whole[1, 1:3] + 0.5
    found = difference(outputs, calls, whole)
    assert (found.max_abs, found.tokens) == (0.5, 7)
    assert found.mean_abs == pytest.approx(0.5 * 4 / 14)


def test_module_outputs_are_disturbed_by_seed_and_only_inside_the_block() -> None:
    graph = graph_of("llama")
    model = build(graph, device="cpu", seed=0)
    ids = torch.arange(6).view(1, 6)

    def off(share: float, seed: int) -> Any:
        with disturbed(model, share, seed):
            return model(ids) - exact

    with torch.no_grad():
        exact = model(ids)
        size = float(exact.abs().max())
        assert torch.equal(off(2**-8, 0), off(2**-8, 0))
        assert not torch.equal(off(2**-8, 0), off(2**-8, 1))
        assert float(off(0.0, 0).abs().max()) == 0
        assert 2**-12 * size < float(off(2**-8, 0).abs().max()) < 2**-4 * size
        assert torch.equal(model(ids), exact)


@pytest.mark.parametrize(
    ("found", "limit", "holds"), [(1, 2, True), (3, 2, False), (float("nan"), 2, False), (3, None, True)]
)
def test_a_difference_holds_within_its_limit(found: float, limit: float | None, holds: bool) -> None:
    each = Comparison(
        way="w", batch=1, tokens=1, max_abs=found, mean_abs=0.0, relative=0.0, max_limit=limit, mean_limit=None
    )
    assert each.holds is holds
    assert torch_judge.described(asdict(each)).startswith("w: max")
