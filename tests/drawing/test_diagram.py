"""A diagram says what the graph says, in text that can be selected, inside its edges."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from archc.drawing.diagram import diagram
from archc.drawing.picture import picture
from archc.drawing.text import joined, shortened, width_of, wrapped
from archc.estimation.estimate import estimate
from archc.spec.load import load_spec, loads_spec, shipped_specs
from archc.units import si

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_it_shows_the_folded_pattern_kinds_widths_parameters_and_caches():
    found = texts(diagram(load_spec("kimi-linear-48b-a3b")))
    for line in (
        "kimi-linear-48b-a3b",
        "27 layers, pre_norm",
        "mixer (kda*3 mla)*6 kda*2 mla",
        "ffn dense moe*26",
        "mixer kda",
        "mixer mla",
        "ffn dense (swiglu)",
        "20 times, 39.51 M parameters each",
        "7 times, 29.11 M parameters each",
        "once, 63.70 M parameters",
        "num_heads 32 · head_dim 128 · conv_kernel 4",
        # As the estimate has it for all layers: 8,064 B a token in 7 layers of MLA, 43,417,600 B in 20 of KDA.
        "cache 1,152 B a token",
        "state 2.070 MiB a sequence",
        "× 5",
        "× 3",
        "4–23",
        "163,840 x 2,304",
        "input_ids",
        "logits",
    ):
        assert line in found, line
    assert any("49.12 G parameters" in line for line in found)


def test_the_layers_it_draws_are_the_layers_of_the_spec():
    (column,) = picture(load_spec("deepseek-v3")).columns
    assert [(one.count, one.layer) for one in column.layers] == [
        (3, (("mixer", "mla"), ("ffn", "dense"))),
        (58, (("mixer", "mla"), ("ffn", "moe"))),
    ]


def test_extra_prediction_layers_are_drawn_apart():
    found = picture(load_spec("deepseek-v3"))
    assert found.extra is not None
    assert found.extra.title == "mtp: 1 layer, pre_norm, counted apart"
    assert found.extra.source == "hidden_states, input_embeddings"
    assert [box.name for box in found.extra.above] == ["enorm", "hnorm", "eh_proj"]
    assert picture(load_spec("llama-3-8b")).extra is None


def test_windows_and_tied_weights_are_told():
    found = texts(diagram(load_spec("gemma-3-4b")))
    assert "cache 4,096 B a token, 1,024 at most" in found
    assert "tied" in found
    # 2 x 4 heads of 256 channels in bfloat16.
    assert "cache 4,096 B a token" in found


@pytest.mark.parametrize("name", shipped_specs())
def test_every_shipped_spec_is_drawn_inside_the_edges_of_its_file(name: str):
    spec = load_spec(name)
    root = ElementTree.fromstring(diagram(spec))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert si(estimate(spec).parameters.total) in " ".join(element.text or "" for element in root.iter(f"{SVG}text"))
    for element in root.iter(f"{SVG}text"):
        x, y, size = (float(element.attrib[name]) for name in ("x", "y", "font-size"))
        assert size >= 12
        wide = width_of(element.text or "", size)
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[element.attrib.get("text-anchor", "start")]
        assert left >= 0
        assert left + wide <= width
        assert size <= y <= height
    for element in root.iter(f"{SVG}rect"):
        assert float(element.attrib.get("x", "0")) + float(element.attrib["width"]) <= width
        assert float(element.attrib.get("y", "0")) + float(element.attrib["height"]) <= height


def test_a_phone_shows_one_stack_in_its_own_size():
    root = ElementTree.fromstring(diagram(load_spec("kimi-linear-48b-a3b")))
    assert float(root.attrib["width"]) <= 440
    assert "max-width:100%" in root.attrib["style"]


def test_light_and_dark_screens_have_colours_for_everything_that_is_drawn():
    root = ElementTree.fromstring(diagram(load_spec("jamba-v0.1")))
    style = next(root.iter(f"{SVG}style")).text or ""
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    used = {name for element in root.iter() for name in element.attrib.get("class", "").split()}
    coloured = used - {"strong", "mono"}
    for name in coloured:
        assert re.search(rf"\.{name}\{{(fill|stroke):#", light), name
        assert re.search(rf"\.{name}\{{(fill|stroke):#", dark), name
    assert {"hue0", "hue3", "bar0", "page", "box", "wire", "head"} <= coloured


def test_keys_are_those_of_the_language():
    found = " ".join(texts(diagram(load_spec("deepseek-v4-flash"))))
    assert "scaling yarn (factor 16," in found
    assert "attention_factor 1))" in found
    assert "indexer (num_heads 64, head_dim 128, topk 512)" in found


TWO_STACKS = """\
spec_version: 1
name: two-stacks
tokenizer: {kind: external, vocab_size: 40}
embedding: {hidden_size: 16, tie_word_embeddings: true}
position: none
norm: {kind: rms_norm, eps: 1e-5}
mixers:
  self: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8}
  to_encoder: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 24}
encoder: {num_layers: 2, block: pre_norm, mixer: self, ffn: mlp}
decoder: {num_layers: 3, block: post_norm, mixer: self, cross: to_encoder, ffn: mlp}
"""


def test_an_encoder_stands_beside_its_decoder_which_reads_it():
    spec = loads_spec(TWO_STACKS)
    encoder, decoder = picture(spec).columns
    assert encoder.title == "encoder: 2 layers, pre_norm, bidirectional"
    assert decoder.title == "decoder: 3 layers, post_norm"
    assert decoder.notes == ["mixer self*3", "cross to_encoder*3", "ffn mlp*3"]
    assert (encoder.source, encoder.result) == ("encoder_input_ids", "")
    assert (decoder.source, decoder.result) == ("input_ids", "logits")
    # One table for both stacks and the head.
    assert [(box.name, box.count) for box in encoder.above] == [("embed_tokens", "640")]
    assert [(box.name, box.count) for box in decoder.above] == [("embed_tokens", "tied")]
    assert [box.name for box in encoder.below] == ["norm"]
    assert [(box.name, box.count) for box in decoder.below] == [("lm_head", "tied")]
    cards = picture(spec).cards
    assert cards["self"].kept == ("cache 128 B a token, 3 times",)
    assert cards["to_encoder"].kept == ("cache 128 B a token of the encoder",)


def test_the_wire_from_an_encoder_ends_at_the_sub_layer_that_reads_it():
    root = ElementTree.fromstring(diagram(loads_spec(TWO_STACKS)))
    wires = [path.attrib["d"] for path in root.iter(f"{SVG}path") if path.attrib["class"] == "wire"]
    (memory,) = [wire for wire in wires if wire.count("L") == 4]
    *_, (x, y) = [tuple(map(float, point.split())) for point in memory[1:].split("L")]
    chips = [rect for rect in root.iter(f"{SVG}rect") if rect.attrib["class"].startswith("hue")]
    (chip,) = [rect for rect in chips if float(rect.attrib["x"]) == x and abs(float(rect.attrib["y"]) + 14 - y) < 1]
    names = [one for one in root.iter(f"{SVG}text") if one.text == "cross: to_encoder"]
    (name,) = names
    assert float(chip.attrib["y"]) < float(name.attrib["y"]) < float(chip.attrib["y"]) + float(chip.attrib["height"])
    # The columns start at one height.
    tops = [float(one.attrib["y"]) for one in root.iter(f"{SVG}text") if (one.text or "").endswith("input_ids")]
    assert tops[0] == tops[1]


def test_an_encoder_alone_is_one_column():
    text = "\n".join(TWO_STACKS.splitlines()[:-1])
    (column,) = picture(loads_spec(text)).columns
    assert column.title == "2 layers, pre_norm, bidirectional"
    assert column.result == "hidden_states"
    assert picture(loads_spec(text)).cards["self"].kept == ()


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_text_stands_out_from_every_ground_by_the_contrast_that_small_texts_need():
    style = re.sub(
        r"\s", "", next(ElementTree.fromstring(diagram(load_spec("jamba-v0.1"))).iter(f"{SVG}style")).text or ""
    )
    for rules in style.split("@media"):
        fills = dict(re.findall(r"([\w.]+)\{fill:(#\w{6})", rules))
        grounds = [colour for name, colour in fills.items() if name in (".page", ".box") or name.startswith(".hue")]
        assert len(grounds) > 8
        for text in ("text", ".muted"):
            for ground in grounds:
                high, low = sorted((luminance(fills[text]), luminance(ground)), reverse=True)
                # WCAG 2.2, level AA.
                assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


ODD = """\
spec_version: 1
name: "a <b> & \\x07 'c'"
description: "]]> {words}"
tokenizer: {{kind: external, vocab_size: 40}}
embedding: {{hidden_size: 16, tie_word_embeddings: true}}
position: none
norm: {{kind: rms_norm, eps: 1e-5}}
mixers:
  {mixer}: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}
ffns:
  mlp: {{kind: swiglu, intermediate_size: 24}}
stack: {{num_layers: {layers}, block: pre_norm, mixer: {pattern}, ffn: {ffn}}}
"""


def test_names_of_any_letters_and_lengths_fit():
    name = "attention_" * 12 + "x"
    svg = diagram(loads_spec(ODD.format(mixer=name, pattern=name, ffn="mlp", layers=2, words="long " * 99)))
    root = ElementTree.fromstring(svg)
    found = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert found[0] == "a <b> & \ufffd 'c'"
    width = float(root.attrib["width"])
    assert all(width_of(line, 12.5) <= width for line in found)
    assert any(line.startswith("attention_attention_") and line.endswith("…") for line in found)


def test_of_layers_without_a_pattern_the_middle_ones_are_counted():
    # Lengths of runs that never repeat.
    pattern = " ".join(f"attn*{count} none" for count in range(1, 90))
    layers = sum(range(1, 90)) + 89
    svg = diagram(loads_spec(ODD.format(mixer="attn", pattern=pattern, ffn="mlp", layers=layers, words="")))
    (more,) = [line for line in texts(svg) if line.endswith(" more layers")]
    found = ElementTree.fromstring(svg).iter(f"{SVG}text")
    at_left = [one for one in found if float(one.attrib["x"]) < 150 and one.attrib.get("text-anchor") == "end"]
    drawn = [line for element in at_left if re.fullmatch(r"[\d,]+(–[\d,]+)?", line := element.text or "")]
    assert len(drawn) == 60
    shown = sum(int(last.replace(",", "")) - int(first.replace(",", "")) + 1 for first, _, last in map(ends, drawn))
    assert shown + int(more.split()[0].replace(",", "")) == layers


def ends(label: str) -> tuple[str, str, str]:
    first, dash, last = label.partition("–")
    return first, dash, last or first


def test_it_is_the_same_every_time(tmp_path: Path):
    assert diagram(load_spec("jamba-v0.1")) == diagram(load_spec("jamba-v0.1"))


def test_lines_are_broken_at_spaces_and_long_words_are_cut():
    lines = wrapped("one two three", 10, width_of("one two", 10))
    assert lines == ["one two", "three"]
    assert shortened("abcdefgh", 10, width_of("abcd…", 10)) == "abcd…"
    assert joined(["a b", "c"], " · ", 10, width_of("a b", 10)) == ["a b", "c"]
    assert joined(["a b", "c"], " · ", 10, 100) == ["a b · c"]
