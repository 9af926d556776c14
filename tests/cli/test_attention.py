"""``archc attention`` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from archc.cli.main import archc as program
from tests.generation.conftest import PADDED

pytestmark = pytest.mark.torch

Invoke = Callable[..., Result]
PNG = b"\x89PNG\r\n\x1a\n"


def test_a_layer_is_a_table_of_heads_and_a_picture(invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "map.png"
    done = invoke("attention", "tiny-llama", "--text", "the cat", "--layer", 1, "-o", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "tiny-llama: attention over 7 tokens" in done.stdout
    assert done.stdout.count("layer 1 attention") == 4
    assert "random weights" in done.stdout
    assert out.read_bytes().startswith(PNG)
    assert [file.name for file in tmp_path.iterdir()] == ["map.png"]


def test_without_a_layer_each_is_the_mean_of_its_heads(invoke: Invoke) -> None:
    done = invoke("attention", "tiny-llama", "--ids", "1,2,3", "--json", "--device", "cpu")
    told = json.loads(done.stdout)
    assert told["tokens"] == ["1", "2", "3"]
    assert told["random_weights"] is True
    assert [one["layer"] for one in told["maps"]] == [0, 1, 2, 3]
    assert all(one["difference"] < 1e-5 and len(one["heads"]) == 4 for one in told["maps"])
    assert invoke("attention", "tiny-llama", "--ids", "1,2,3", "--device", "cpu").stdout.count("mean of 4") == 4


def test_pictures_are_the_same_each_time_and_fetch_nothing(invoke: Invoke, tmp_path: Path) -> None:
    made: list[bytes] = []
    for name in ("a.svg", "b.svg", "c.html"):
        done = invoke(
            "attention",
            "tiny-llama",
            "--text",
            "a $b<c",
            "--layer",
            0,
            "--head",
            2,
            "-o",
            tmp_path / name,
            "--device",
            "cpu",
        )
        assert done.exit_code == 0, done.output
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
    page = made[2].decode()
    assert page.startswith("<!DOCTYPE html>")
    assert "layer 0 attention, head 2" in page
    assert "src=" not in page
    assert page.count("href=") == page.count('href="#') + page.count('href="data:')
    assert "&lt;" in page, "tokens are text and no markup"


def test_a_decoder_is_given_its_text_and_reads_the_encoders(invoke: Invoke, tmp_path: Path) -> None:
    given = ("attention", "tiny-t5", "--text", "a cat sat", "--device", "cpu")
    done = invoke(*given, "--decoder-text", "le", "--json", "--layer", "decoder.0")
    told = json.loads(done.stdout)
    assert told["tokens"] == ["0", "l", "e"], "the id that the decoder begins with, and two bytes"
    assert len(told["source_tokens"]) == 9
    shapes = [(one["op"], one["rows"], one["columns"]) for one in told["maps"]]
    assert shapes == [("attention", 3, 3), ("cross_attention", 3, 9)]
    assert told["maps"][1]["heads"][0]["distance_tokens"] is None
    assert "--decoder-text says what it has written" in invoke(*given).stderr


def test_an_encoder_alone_has_maps_too(invoke: Invoke) -> None:
    small = ("--set", "encoder.num_layers=1", "--set", "embedding.hidden_size=48")
    done = invoke("attention", "bert-base-uncased", "--text", "a cat", *small, "--json", "--device", "cpu")
    told = json.loads(done.stdout)
    assert [(one["op"], one["rows"]) for one in told["maps"]] == [("bidirectional_attention", 5)]


def test_a_folder_with_weights_is_read_with_them(invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "built"
    CliRunner().invoke(
        program, ["build", "tiny-llama", "-o", str(out), "--seed", "3", "--dtype", "float32"], catch_exceptions=False
    )
    asked = ("--ids", "5,6,7,8", "--json", "--device", "cpu")
    folder = json.loads(invoke("attention", out, *asked).stdout)
    drawn = json.loads(invoke("attention", "tiny-llama", *asked, "--seed", 3).stdout)
    other = json.loads(invoke("attention", "tiny-llama", *asked, "--seed", 4).stdout)
    assert folder["random_weights"] is False
    heads = [[one["heads"] for one in told["maps"]] for told in (folder, drawn, other)]
    assert heads[0] == heads[1] != heads[2]
    refused = invoke("attention", out, "--text", "a cat", "--device", "cpu")
    assert refused.exit_code == 2
    assert "has no tokenizer" in refused.stderr, "bytes would be another text than the weights were trained on"


def test_pieces_of_a_tokenizer_stand_at_the_axes(invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    spec, out = tmp_path / "padded.yaml", tmp_path / "built"
    spec.write_text(PADDED)
    CliRunner().invoke(program, ["build", str(spec), "-o", str(out), "--seed", "3"], catch_exceptions=False)
    told = json.loads(invoke("attention", out, "--text", "hello", "--json", "--device", "cpu").stdout)
    assert "".join(told["tokens"]).endswith("hello")
    assert told["random_weights"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either --text or --ids says what is read"),
        (("--text", "a", "--ids", "1"), "either --text or --ids says what is read"),
        (("--ids", "1,x"), "ids are written as in 1,2,3 (found '1,x')"),
        (("--ids", "1,5000000"), "and the text has 5000000"),
        (("--text", ""), "the text has no tokens"),
        (("--text", "a" * 300), "the text has 300 tokens; maps are drawn of 256 at most"),
        (("--text", "a", "--layer", "x"), "'x' is no layer; layers are written as 3, encoder.3 or decoder.3"),
        (("--text", "a", "--layer", "99"), "has no map in that layer; those with one: 0, 1, 2, 3"),
        (("--text", "a", "--layer", "0", "--head", "9"), "the layer has 4 heads, numbered from 0; found 9"),
        (("--text", "a", "--head", "0"), "--head is one of a layer; --layer says which"),
        (("--text", "a", "-o", "map.gif"), "'map.gif' should end in .png, .svg, .html"),
        (("--text", "a", "-o", "nowhere/map.png"), "there is no folder"),
        (("--text", "a", "--prefix-length", "1"), "has no prefix: the mask of its stack is causal"),
        (("--text", "a", "--decoder-text", "b"), "has no decoder that reads an encoder"),
    ],
)
def test_what_can_not_be_drawn_is_said(invoke: Invoke, arguments: tuple[str, ...], said: str) -> None:
    done = invoke("attention", "tiny-llama", *arguments, "--device", "cpu")
    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")


def test_a_model_of_pictures_says_that_it_reads_none(invoke: Invoke) -> None:
    small = ("--set", "encoder.num_layers=1", "--set", "ffns.mlp.intermediate_size=8")
    done = invoke("attention", "vit-base-patch16-224", "--text", "a", *small, "--device", "cpu")
    assert done.exit_code == 2
    assert "reads pixel_values; maps are drawn of texts" in done.stderr


def test_without_matplotlib_the_extra_is_named_and_the_table_is_there(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    done = invoke("attention", "tiny-llama", "--text", "a", "-o", tmp_path / "map.png", "--device", "cpu")
    assert done.exit_code == 2
    assert "needs the extra 'plot': pip install 'archc-compiler[plot]'" in done.stderr
    assert invoke("attention", "tiny-llama", "--text", "a", "--device", "cpu").exit_code == 0
