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
    assert command == "archc estimate kimi-linear-48b-a3b --batch-size 8 --max-model-len 131072"
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
    page.write("block", "48")
    options: dict[str, Any] = {"dtype": "int4", "kv_cache_dtype": "float8_e4m3fn", "block_size": 48}
    found = estimate("qwen3-next-80b-a3b", max_model_len=5000, **options)
    check(page, found)
    check_tables(page, found)


def test_a_decoder_with_an_encoder_and_an_encoder_stand_side_by_side(opened: Opened):
    page = opened("t5-base", "bert-base-uncased", max_model_len=300)
    check(page, estimate("t5-base", max_model_len=300), 1)
    check(page, estimate("bert-base-uncased", max_model_len=300), 2)
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
    page = opened("tiny-kimi-linear", "tiny-t5")
    page.tab.emulate_media(media="print")
    assert not page.tab.locator("#settings").is_visible()
    assert page.overflow() == 0
    page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.tab.locator("details:not([open])").count() == 0
    printed = page.tab.pdf(format="A4")
    assert printed.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8


def test_a_hostile_text_stays_a_text(opened: Opened, hostile):
    page = opened(hostile)
    assert page.said == []
    assert page.tab.evaluate("window.broken === undefined")
    assert page.tab.locator("h1").inner_text() == hostile.name
    assert page.tab.locator("h1 *").count() == 0
    assert page.tab.locator("script").count() == 2
