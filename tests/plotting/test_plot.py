"""Charts: what is drawn are the numbers, on axes with units, in files that are the same every time."""

from __future__ import annotations

import importlib
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from archc.errors import ArchcError, MissingExtraError, SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.planning.comparison.curves import lengths_between
from archc.planning.timing.estimate import estimate_time
from archc.plotting.plot import plot
from archc.spec.load import load_spec

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex

SPECS = ("kimi-linear-48b-a3b", "deepseek-v3", "gpt-oss-20b")


def labels(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_lines_of_the_cache_chart_are_the_estimates_at_their_lengths():
    figure = plot(SPECS, what="cache", at=[1 << 10, 1 << 14], batch_size=3).figure()
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata()) > 2]
    assert labels(axes) == list(SPECS)
    assert len(lines) == len(SPECS)
    for name, line in zip(SPECS, lines, strict=True):
        graph = expand(load_spec(name))
        lengths = [int(length) for length in line.get_xdata()]
        assert (lengths[0], lengths[-1]) == (1 << 10, 1 << 14)
        expected = [estimate(graph, max_model_len=length, batch_size=3).cache.used_bytes for length in lengths]
        assert [int(value) for value in line.get_ydata()] == expected
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "length (tokens)"
    assert "GiB" in axes.get_ylabel()
    assert axes.get_title(loc="left") == "cache, batch 3"
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert {"1k", "4k", "16k"} <= set(ticks)


def test_the_lines_of_the_flops_chart_are_of_one_token_whatever_the_batch():
    for batch_size in (1, 8):
        figure = plot("llama-3-8b", what="flops", at=[4096], batch_size=batch_size).figure()
        (axes,) = figure.axes
        decode, prefill = (line for line in axes.lines if len(line.get_xdata()) > 2)
        assert decode.get_linestyle() != prefill.get_linestyle()
        lengths = list(decode.get_xdata())
        assert 4096 in lengths
        found = estimate("llama-3-8b", max_model_len=4096).flops.numbers
        assert decode.get_ydata()[lengths.index(4096)] == found["decode"]
        assert prefill.get_ydata()[lengths.index(4096)] == pytest.approx(found["prefill"] / 4096)
        # The length asked for is pointed out.
        marked = next(line for line in axes.lines if len(line.get_xdata()) == 2)
        assert list(marked.get_xdata()) == [4096, 4096]
        assert "4k" in [text.get_text() for text in axes.texts]


def test_the_bars_are_shares_of_the_parameters_by_part_and_sum_to_all_of_them():
    drawn = plot(["kimi-linear-48b-a3b", "llama-3-8b"], what="parameters")
    (axes,) = drawn.figure().axes
    found = estimate("kimi-linear-48b-a3b").parameters
    groups = labels(axes)
    widths = [[bar.get_width() for bar in container] for container in axes.containers]
    # All of Kimi Linear, what a token uses of it, all of Llama.
    assert {len(bars) for bars in widths} == {3}
    for bar in range(3):
        assert sum(bars[bar] for bars in widths) == pytest.approx(100)
    kda = found.by_part["mixer", "kda"]
    assert widths[groups.index("mixer.kda")][0] == pytest.approx(100 * kda / found.total)
    assert widths[groups.index("mixer.kda")][1] == pytest.approx(100 * kda / found.active)
    assert [text.get_text() for text in axes.texts] == ["49.1 G", "3.48 G active", "8.03 G"]
    data = drawn.to_json()["charts"][0]["bars"]
    assert [bar["total"] for bar in data] == [found.total, found.active, 8_030_261_248]
    assert data[0]["by_group"]["mixer.kda"] == kda


def test_many_parts_leave_the_smallest_to_one_group_that_keeps_the_sum():
    data = plot(["deepseek-v4-flash", "jamba-v0.1", "gpt-oss-20b"], what="parameters").to_json()["charts"][0]["bars"]
    assert len(data[0]["by_group"]) == 8
    assert list(data[0]["by_group"])[-1] == "others"
    for bar in data:
        assert sum(bar["by_group"].values()) == bar["total"]


def test_all_charts_stand_in_one_figure_whose_title_says_specs_and_options():
    drawn = plot(SPECS, batch_size=4, kv_cache_dtype="fp8", overrides=["norm.eps=1e-6"])
    figure = drawn.figure()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "cache, batch 4",
        "FLOPs a token",
        "parameters by part",
    ]
    title = figure.get_suptitle()
    for part in (*SPECS, "batch size 4", "kv cache dtype fp8", "norm.eps=1e-6"):
        assert part in title.replace("\n", " ")
    assert plot(["gpt2"] * 5).title == "5 models · batch size 1"


def test_models_without_a_cache_are_left_out_of_its_chart_and_said_to_keep_none():
    (axes,) = plot(["bert-base-uncased", "gpt2"], what="cache").figure().axes
    assert [curve["model"] for curve in plot("bert-base-uncased", what="cache").to_json()["charts"][0]["curves"]] == []
    assert axes.get_legend() is None or labels(axes) == ["gpt2"]
    (empty,) = plot("bert-base-uncased", what="cache").figure().axes
    assert "no model keeps a cache" in [text.get_text() for text in empty.texts]
    (flops,) = plot("bert-base-uncased", what="flops").figure().axes
    assert "forward, mean" in labels(flops)


def test_a_constant_has_ticks_on_both_sides():
    (axes,) = plot("mamba2-2.7b", what="cache").figure().axes
    low, high = axes.get_ylim()
    value = estimate("mamba2-2.7b").cache.used_bytes
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert min(ticks) < value < max(ticks)


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-")])
def test_the_same_charts_are_the_same_bytes(ending: str, start: bytes, tmp_path: Path):
    drawn = plot(["gpt2", "tiny-llama"])
    first = drawn.picture(ending)
    assert first.startswith(start)
    assert len(first) > 5_000
    assert plot(["gpt2", "tiny-llama"]).picture(ending) == first
    drawn.save(tmp_path / f"out{ending}")
    assert (tmp_path / f"out{ending}").read_bytes() == first


def test_names_with_signs_of_formulas_and_letters_that_no_font_has_are_drawn(tmp_path: Path):
    text = Path(__file__).parents[2].joinpath("specs/tiny/tiny-llama.yaml").read_text(encoding="utf-8")
    file = tmp_path / "odd.yaml"
    file.write_text(text.replace("name: tiny-llama", 'name: "a $x_2$ <b>&\U0001f999"'), encoding="utf-8")
    svg = plot([file, "gpt2"]).picture(".svg").decode()
    assert "a $x_2$ &lt;b&gt;&amp;" in svg
    assert plot([file, "gpt2"]).picture(".png").startswith(b"\x89PNG")


def test_json_has_the_numbers_that_are_drawn():
    drawn = plot("tiny-llama", at=[16, 64])
    data = json.loads(json.dumps(drawn.to_json()))
    assert [chart["what"] for chart in data["charts"]] == ["cache", "flops", "parameters"]
    curve = data["charts"][0]["curves"][0]
    assert curve["values"] == [
        estimate("tiny-llama", max_model_len=length).cache.used_bytes for length in curve["lengths"]
    ]


def test_lengths_of_a_curve_are_even_and_hold_both_ends_and_powers_of_two():
    found = lengths_between(1000, 10_000)
    assert (found[0], found[-1]) == (1000, 10_000)
    assert {1024, 2048, 4096, 8192} <= set(found)
    ratios = [after / before for before, after in pairwise(found)]
    assert max(ratios) < 1.2
    assert lengths_between(5, 5) == (5,)


def test_what_can_not_be_drawn_is_an_error_that_says_what_can():
    with pytest.raises(ArchcError, match="did you mean cache"):
        plot("gpt2", what="cahce")
    with pytest.raises(ArchcError, match="at least 1 token"):
        plot("gpt2", at=[0, 5])
    with pytest.raises(ArchcError, match=r"ends in \.png, \.svg, \.pdf"):
        plot("gpt2").picture(".gif")
    with pytest.raises(SpecError):
        plot(["gpt3"])


def test_the_roofline_has_the_roof_of_the_device_and_the_parts_of_prefill_and_decode_under_it():
    drawn = plot("kimi-linear-48b-a3b", what="roofline", gpu="h200", at=[4096], batch_size=32)
    (axes,) = drawn.figure().axes
    timing = estimate_time("kimi-linear-48b-a3b", gpu="h200", max_model_len=4096, batch_size=32)
    vendor, taken = axes.lines[:2]
    assert max(vendor.get_ydata()) == timing.roof.peak_flops_per_s
    assert max(taken.get_ydata()) == timing.roof.flops_per_s
    # The corner of the roof is the ridge.
    assert taken.get_xdata()[1] == timing.roof.ridge_flops_per_byte
    rows = [row for step in ("prefill", "decode") for row in timing.steps[step].by_part if row.work.flops]
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[2:]]
    assert points == [(row.work.flops_per_byte, row.work.flops / row.seconds) for row in rows]
    for intensity, rate in points:
        assert rate <= min(timing.roof.flops_per_s, intensity * timing.roof.bytes_per_s) * (1 + 1e-9)
    assert {"mixer.kda", "ffn.moe", "prefill", "decode, one token"} <= set(labels(axes))
    assert axes.get_title(loc="left") == "roofline: kimi-linear-48b-a3b at 4k"
    data = drawn.to_json()["charts"][0]
    assert data["is_measurement"] is False
    assert {point["bound"] for point in data["points"]} == {"compute", "memory"}


def test_a_roofline_is_drawn_for_each_model_and_only_where_a_device_is_named():
    drawn = plot(["gpt2", "bert-base-uncased"], gpu="h100", at=[512])
    titles = [axes.get_title(loc="left") for axes in drawn.figure().axes]
    assert titles[3:] == ["roofline: gpt2 at 512", "roofline: bert-base-uncased at 512"]
    assert len(plot(["gpt2"]).charts) == 3
    with pytest.raises(ArchcError, match="name one as gpu"):
        plot("gpt2", what="roofline")


def test_a_part_has_one_colour_in_all_charts_of_a_figure():
    axes = plot("kimi-linear-48b-a3b", gpu="h200").figure().axes
    bars, roofline = axes[2], axes[3]
    of_bars = {container.get_label(): to_hex(container[0].get_facecolor()) for container in bars.containers}
    legend = roofline.get_legend()
    of_points = {
        text.get_text(): to_hex(handle.get_color())
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
    }
    shared = set(of_bars) & set(of_points)
    assert {"mixer.kda", "mixer.mla", "ffn.moe", "head"} <= shared
    assert {part: of_bars[part] for part in shared} == {part: of_points[part] for part in shared}
    assert len({of_bars[part] for part in shared}) == len(shared)


def test_many_models_stay_apart_and_their_names_stand_below_the_curves():
    names = [
        "llama-3-8b",
        "deepseek-v3",
        "gpt-oss-20b",
        "jamba-v0.1",
        "gemma-3-4b",
        "mamba2-2.7b",
        "gpt2",
        "qwen3-8b",
        "phi-3-mini-4k",
    ]
    figure = plot(names, what=["cache", "parameters"], at=[1024, 4096]).figure()
    figure.draw_without_rendering()
    cache = figure.axes[0]
    lines = [line for line in cache.lines if len(line.get_xdata()) > 2]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(names)
    assert labels(cache) == names
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
    # Nothing leaves the figure.
    box = figure.get_tightbbox()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()


def test_curves_reach_1e15_tokens():
    (axes,) = plot(["kimi-linear-48b-a3b", "gpt-oss-20b"], what="cache", at=[1, 10**15]).figure().axes
    assert max(axes.lines[0].get_ydata()) == 43_417_600 + 8_064 * 10**15
    assert "64G" in [label.get_text() for label in axes.get_xticklabels()]


def test_without_matplotlib_there_are_numbers_and_an_error_that_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "archc.plotting."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delattr("archc.plotting.figure", raising=False)
    drawn = importlib.import_module("archc.plotting.plot").plot("tiny-llama", what="cache", at=[16, 64])
    assert drawn.to_json()["charts"][0]["curves"]
    with pytest.raises(MissingExtraError, match=r"archc-compiler\[plot\]"):
        drawn.picture(".png")
