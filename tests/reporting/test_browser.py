"""The page in a headless Chromium: quiet, alone, narrow and wide, and its numbers are those of the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from archc.cli.main import archc
from archc.estimation.estimate import Estimate, estimate
from archc.expansion import expand
from archc.planning.parallel import Parallel
from archc.planning.serving.estimate import estimate_serving
from archc.planning.serving.memory import Serving, StageMemory
from archc.planning.sharding import shard
from archc.planning.timing.estimate import estimate_time
from archc.spec.load import load_spec
from archc.units import parse_bytes, parse_length
from tests.reporting.conftest import Page

Opened = Callable[..., Page]


def check(page: Page, found: Estimate, column: int = 1) -> None:
    """Every number of the overview against an estimate."""
    overview = {"weights": found.weights.bytes, "total": found.parameters.total, "active": found.parameters.active}
    if "decode" in found.flops.numbers:
        overview |= {
            "used": found.cache.used_bytes,
            "allocated": found.cache.allocated_bytes,
            "paged": found.cache.paged_bytes,
            "perToken": found.cache.bytes_per_token,
        }
    overview |= {name: number for name, number in found.flops.numbers.items() if not name.endswith("_dense")}
    table = page.table("overview-table")
    assert {key: table[key][column - 1] for key in overview} == overview


def check_tables(page: Page, found: Estimate, place: int = 0) -> None:
    """Every number of a model's own tables."""
    cache = page.table(f"cache-{place}")
    for kind in found.cache.by_kind:
        state_bytes = kind.recurrent_bytes_per_sequence + kind.convolution_bytes_per_sequence
        totals = [kind.used_bytes, kind.allocated_bytes, kind.paged_bytes]
        shown = [kind.layers, None, kind.bytes_per_token_below_windows, kind.window, state_bytes, *totals]
        assert cache[".".join(kind.part)] == shown
    steps = [step for step in ("forward", "prefill", "decode") if step in found.flops.numbers]
    layers = page.table(f"layers-{place}")
    assert list(layers) == list(found.layers)
    for layer, cells in layers.items():
        assert cells[-len(steps) :] == [found.flops.by_layer[layer][step] for step in steps]
    flops = page.table(f"flops-{place}")
    for step in (*steps, "train_step"):
        assert flops[step] == [found.flops.numbers[step], found.flops.numbers[f"{step}_dense"]]


def test_it_loads_without_a_message_and_asks_for_nothing(opened: Opened):
    page = opened("kimi-linear-48b-a3b", "t5-base", "bert-base-uncased")
    page.write("length", "8k")
    page.tab.locator("#theme").click()
    assert page.said == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in page.asked if url.startswith("file:")]) == 1


def test_a_slider_that_moves_gives_the_numbers_of_the_command_line(opened: Opened):
    page = opened("kimi-linear-48b-a3b")
    slider = page.tab.locator("#length-slider")
    slider.fill(str(17 * 4))
    assert page.tab.locator("#length-exact").inner_text() == "128k = 131,072 tokens"
    page.tab.locator("#batch-slider").fill(str(3 * 4))
    command = page.tab.locator("#command-0").inner_text()
    assert command.startswith("archc estimate kimi-linear-48b-a3b --batch-size 8 --max-model-len 131072 --serve")
    result = CliRunner().invoke(archc, [*command.split()[1:], "--json"], catch_exceptions=False)
    told = json.loads(result.stdout)
    shown = page.table("overview-table")
    assert shown["used"] == [told["cache"]["used_bytes"]]
    assert shown["weights"] == [told["weights"]["bytes"]]
    assert shown["prefill"] == [told["flops"]["prefill"]]
    assert shown["decode"] == [told["flops"]["decode"]]


def test_keys_move_a_slider(opened: Opened):
    page = opened("gpt-oss-20b", max_model_len=1024)
    slider = page.tab.locator("#length-slider")
    slider.focus()
    for _ in range(3):
        page.tab.keyboard.press("ArrowRight")
    assert page.tab.locator("#length").input_value() == "1,792"
    check(page, estimate("gpt-oss-20b", max_model_len=1792))


@pytest.mark.parametrize("name", ["gpt-oss-20b", "kimi-linear-48b-a3b", "deepseek-v4-flash", "nsa-demo", "llama-3-8b"])
def test_every_number_is_the_estimate_at_several_positions(opened: Opened, name: str):
    page = opened(name)
    for length, batch in (("1", 1), ("127", 3), ("128k", 64), ("1,000,001", 5)):
        page.write("length", length)
        page.write("batch", str(batch))
        tokens = {"128k": 131072}.get(length) or int(length.replace(",", ""))
        found = estimate(name, max_model_len=tokens, batch_size=batch)
        check(page, found)
        check_tables(page, found)
    assert page.said == []


def test_dtypes_and_blocks_give_the_estimate(opened: Opened):
    page = opened("qwen3-next-80b-a3b", max_model_len=5000)
    page.tab.locator("#dtype").select_option("int4")
    page.tab.locator("#kvDtype").select_option("float8_e4m3fn")
    page.tab.locator(".extra summary").click()
    page.write("block", "48")
    options: dict[str, Any] = {"dtype": "int4", "kv_cache_dtype": "float8_e4m3fn", "block_size": 48}
    found = estimate("qwen3-next-80b-a3b", max_model_len=5000, **options)
    check(page, found)
    check_tables(page, found)


def test_a_decoder_with_an_encoder_and_an_encoder_stand_side_by_side(opened: Opened):
    page = opened("t5-base", "bert-base-uncased", max_model_len=300)
    check(page, estimate("t5-base", max_model_len=300), 1)
    check(page, estimate("bert-base-uncased", max_model_len=300), 2)
    page.tab.locator(".extra summary").click()
    page.write("source", "77")
    check(page, estimate("t5-base", max_model_len=300, source_len=77), 1)
    check_tables(page, estimate("t5-base", max_model_len=300, source_len=77), 0)
    page.write("source", "")
    check(page, estimate("t5-base", max_model_len=300), 1)


def test_no_length_overflows(opened: Opened):
    page = opened("kimi-linear-48b-a3b")
    page.write("length", "1e15")
    page.write("batch", "4096")
    check(page, estimate("kimi-linear-48b-a3b", max_model_len=10**15, batch_size=4096))
    assert page.overflow() == 0


def worst(served: Serving) -> StageMemory:
    """The stage that needs most under tensors."""
    return max(served.stages, key=lambda stage: stage.weight_bytes + stage.allocated_bytes)


@pytest.mark.parametrize(
    ("name", "tp", "pp", "ep", "gpu", "batch", "length"),
    [
        ("kimi-linear-48b-a3b", 8, 1, 1, "h200", 64, 131072),
        ("kimi-linear-48b-a3b", 4, 4, 4, "a100-40gb", 3, 1000),
        ("gpt-oss-120b", 16, 2, 1, "l40s", 8, 100001),
        ("deepseek-v3", 8, 1, 8, "b200", 1, 4096),
        ("t5-base", 2, 1, 1, "rtx-4090", 5, 300),
        ("bert-base-uncased", 4, 1, 1, "h100", 16, 512),
    ],
)
def test_ranks_and_devices_give_what_serving_and_timing_estimate(
    opened: Opened, name: str, tp: int, pp: int, ep: int, gpu: str, batch: int, length: int
):
    parallel = Parallel(tp=tp, pp=pp, ep=ep)
    page = opened(name, gpu=gpu)
    page.write("batch", str(batch))
    page.write("length", str(length))
    for control, value in (("tp", tp), ("pp", pp)):
        page.tab.locator(f"#{control}").select_option(str(value))
    if ep > 1:
        page.tab.locator("#experts").select_option("ep")
    options: dict[str, Any] = {"batch_size": batch, "max_model_len": length, "gpu": gpu, "parallel": parallel}
    command = page.tab.locator("#command-0").inner_text().split()
    workspace_bytes = int(command[command.index("--workspace") + 1])
    served = estimate_serving(name, workspace_bytes=workspace_bytes, **options)
    most = worst(served)
    shown = page.table("overview-table")
    beside = most.workspace_bytes + most.overhead_bytes
    assert shown["rankWeights"] == [most.weight_bytes]
    assert shown["rankUsed"] == [most.used_bytes]
    assert shown["rankAllocated"] == [most.allocated_bytes]
    assert shown["rankTotal"] == [most.weight_bytes + most.allocated_bytes + beside]
    fit = served.fits["tensors"]
    assert (shown["maxBatch"], shown["maxLength"]) == ([fit.max_batch], [fit.max_length_tokens])
    timing = estimate_time(name, **options)
    seconds = page.numbers("overview-table")
    for step in ("prefill", "decode", "forward"):
        if step in timing.steps:
            assert seconds[f"{step}Time"] == [pytest.approx(timing.steps[step].seconds, rel=1e-6)]
    if "decode" in timing.steps:
        assert seconds["decodeRate"] == [pytest.approx(timing.steps["decode"].tokens_per_s, rel=1e-6)]
        bound = page.tab.locator('#overview-table tr[data-key="decodeBound"] td').inner_text()
        assert bound == timing.steps["decode"].whole.bound
    layers = page.numbers("time-0")
    first = timing.steps["prefill" if "prefill" in timing.steps else "forward"]
    assert {row: cells[0] for row, cells in layers.items()} == {
        row.name: pytest.approx(row.seconds, rel=1e-6) for row in first.by_layer
    }
    notes = page.tab.locator("#notes").inner_text()
    assert all(note in notes for note in shard(expand(load_spec(name)), parallel).notes)


def test_a_split_that_a_model_cannot_have_is_explained(opened: Opened):
    page = opened("gpt2", "llama-3-8b", max_model_len=1024)
    page.tab.locator("#tp").select_option("8")
    problem = shard(expand(load_spec("gpt2")), Parallel(tp=8)).problems[0]
    assert f"gpt2: {problem}" in page.tab.locator("#notes").inner_text()
    cells = page.table("overview-table")["rankWeights"]
    assert cells[0] is None
    assert cells[1] == worst(estimate_serving("llama-3-8b", parallel=Parallel(tp=8))).weight_bytes


def test_efficiencies_change_the_time_as_options_do(opened: Opened):
    page = opened("llama-3-8b", max_model_len=2048)
    page.tab.locator(".extra summary").click()
    page.write("memoryEfficiency", "1")
    page.write("computeEfficiency", "0.35")
    command = page.tab.locator("#command-0").inner_text()
    assert "--compute-efficiency 0.35 --memory-efficiency 1" in command
    timing = estimate_time("llama-3-8b", gpu="h200", max_model_len=2048, memory_efficiency=1.0, compute_efficiency=0.35)
    shown = page.numbers("overview-table")
    assert shown["decodeTime"] == [pytest.approx(timing.steps["decode"].seconds, rel=1e-9)]
    assert shown["prefillTime"] == [pytest.approx(timing.steps["prefill"].seconds, rel=1e-9)]
    result = CliRunner().invoke(archc, [*command.split()[1:], "--json"], catch_exceptions=False)
    assert shown["decodeTime"] == [pytest.approx(json.loads(result.stdout)["time"]["steps"]["decode"]["seconds"])]


def test_what_is_no_length_is_said_and_changes_nothing(opened: Opened):
    page = opened("tiny-llama", max_model_len=512)
    before = page.table("overview-table")
    for text in ("12x", "-1", "0", "1.5", "9" * 30, "<b>"):
        page.write("length", text)
        assert text[:40] in page.tab.locator("#problem").inner_text()
        assert page.tab.locator("#length").get_attribute("aria-invalid") == "true"
        assert page.table("overview-table") == before
    page.write("length", "1.5k")
    assert page.tab.locator("#problem").inner_text() == ""
    check(page, estimate("tiny-llama", max_model_len=1536))


LENGTHS = ("4096", "4,096", "1_000", "128k", "1.5K", "1M", "0.5m", "1e6", "2.5e3", "1G", "3 k", "1e15")
NO_LENGTHS = ("10^3", "4,09", "k", "1e-3", "0", "", "1kb", "2.0001k")
SIZES = ("2GB", "2GiB", "512 MiB", "1.5GiB", "80e9", "1000", "1,000 kB", "2G", "0.3B", "GB", "-1GB")


def understood(parse: Callable[[str], int], text: str) -> int | None:
    try:
        return parse(text)
    except ValueError:
        return None


def test_boxes_read_numbers_as_the_command_line_does(opened: Opened):
    page = opened("tiny-llama")
    page.tab.locator(".extra summary").click()
    for name, texts, parse, option in (
        ("length", LENGTHS + NO_LENGTHS, parse_length, "--max-model-len"),
        ("workspace", SIZES, parse_bytes, "--workspace"),
    ):
        for text in texts:
            page.write(name, text)
            words = page.tab.locator("#command-0").inner_text().split()
            is_wrong = page.tab.locator(f"#{name}").get_attribute("aria-invalid") == "true"
            number = None if is_wrong else int(words[words.index(option) + 1])
            assert number == understood(parse, text), (name, text)


def test_an_address_brings_the_settings_back(opened: Opened):
    page = opened("tiny-llama")
    page.write("length", "3000")
    page.tab.locator("#kvDtype").select_option("int8")
    page.tab.reload()
    assert page.tab.locator("#length").input_value() == "3,000"
    check(page, estimate("tiny-llama", max_model_len=3000, kv_cache_dtype="int8"))


def test_no_window_is_too_narrow(opened: Opened):
    page = opened("kimi-linear-48b-a3b", "t5-base", "gpt-oss-20b", width=320, max_model_len=1048576)
    page.tab.locator("#controls").evaluate("(node) => { node.open = true; }")
    for width in (320, 390, 768, 1280, 1920):
        page.tab.set_viewport_size({"width": width, "height": 900})
        assert page.overflow() == 0, width


def test_colours_follow_the_reader_and_the_button(opened: Opened):
    page = opened("tiny-llama", dark=True)

    def background() -> str:
        return page.tab.evaluate("getComputedStyle(document.body).backgroundColor")

    assert background() == "rgb(17, 20, 24)"
    page.tab.locator("#theme").click()
    assert background() == "rgb(255, 255, 255)"
    assert page.tab.locator("#theme").get_attribute("aria-pressed") == "false"


CONTRAST = """() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const worst = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || node.closest("script, style, svg, noscript, option") || !node.getClientRects().length) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    worst.push([(a + 0.05) / (b + 0.05), node.textContent.slice(0, 40)]);
  }
  return worst.sort((x, y) => x[0] - y[0])[0];
}"""


def test_texts_stand_out_as_wcag_asks(opened: Opened):
    page = opened("kimi-linear-48b-a3b", "gpt-oss-20b")
    for colours in ("light", "dark"):
        page.tab.emulate_media(color_scheme=colours)
        ratio, text = page.tab.evaluate(CONTRAST)
        assert ratio >= 4.5, (colours, text)


def test_every_control_has_a_name_and_charts_say_what_they_show(opened: Opened):
    page = opened("t5-base", "llama-3-8b", max_model_len=512)
    nameless = page.tab.evaluate(
        """() => [...document.querySelectorAll("input, select, button")]
        .filter((node) => !(node.labels && node.labels.length) && !node.ariaLabel && !node.textContent.trim())
        .map((node) => node.id)"""
    )
    assert nameless == []
    label = page.tab.locator("#chart-0").get_attribute("aria-label")
    assert re.fullmatch(r"Cache, used against the length\. At 512 tokens: t5-base: .* MiB; llama-3-8b: .* MiB\.", label)
    twice = page.tab.evaluate(
        """() => { const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
        return ids.filter((id, place) => ids.indexOf(id) !== place); }"""
    )
    assert twice == []


def test_it_prints_everything_without_controls(opened: Opened, tmp_path):
    page = opened("kimi-linear-48b-a3b", "t5-base", width=718)
    page.tab.emulate_media(media="print")
    assert not page.tab.locator("#settings").is_visible()
    assert page.overflow() == 0
    page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.tab.locator("details:not([open])").count() == 0
    printed = page.tab.pdf(format="A4")
    assert printed.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12


def test_a_hostile_text_stays_a_text(opened: Opened, hostile):
    page = opened(hostile)
    assert page.said == []
    assert page.tab.evaluate("window.broken === undefined")
    assert page.tab.locator("h1").inner_text() == hostile.name
    assert page.tab.locator("h1 *").count() == 0
    assert page.tab.locator("script").count() == 2
