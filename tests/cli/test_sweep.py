"""What ``archc sweep`` writes and prints, and how it ends."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from click.testing import Result

from archc.cli.sweep_files import write_rows
from archc.planning.search.sweep import sweep

Invoke = Callable[..., Result]

KIMI = "kimi-linear-48b-a3b"
HEADS = "mixers.kda.num_heads=16,32"
# As a shell hands it on, with and without quotes of its own.
PATTERNS = [
    'stack.mixer="(kda*3 mla)* kda*2 mla","(kda*7 mla)* kda*2 mla"',
    "stack.mixer=(kda*3 mla)* kda*2 mla,(kda*7 mla)* kda*2 mla",
]


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("patterns", PATTERNS)
def test_every_combination_is_a_row_of_csv(invoke: Invoke, patterns: str):
    result = invoke("sweep", KIMI, "--vary", HEADS, "--vary", patterns)
    assert result.exit_code == 0
    rows = records(result.stdout)
    assert [(row["mixers.kda.num_heads"], row["stack.mixer"][:7]) for row in rows] == [
        ("16", "(kda*3 "),
        ("16", "(kda*7 "),
        ("32", "(kda*3 "),
        ("32", "(kda*7 "),
    ]
    assert rows[2]["parameters"] == "49122675072"
    assert rows[2]["cache_bytes_at_4096"] == "76447744"
    assert rows[2]["error"] == ""
    assert "4 variants" in result.stderr
    assert "4 variants" not in result.stdout


def test_lengths_are_written_as_people_write_them(invoke: Invoke):
    rows = records(invoke("sweep", KIMI, "--vary", HEADS, "--at", "1k,1M", "--metrics", "cache").stdout)
    assert [name for name in rows[0] if "_at_" in name] == ["cache_bytes_at_1024", "cache_bytes_at_1048576"]


def test_invalid_variants_are_counted_at_the_end(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "out.csv"
    result = invoke("sweep", KIMI, "--vary", "mixers.kda.num_heads=0,16", "-o", path)
    assert result.exit_code == 0
    assert f"wrote {path}: 2 variants, 1 invalid" in result.stdout
    rows = records(path.read_text())
    assert rows[0]["error"] == "mixers.kda.num_heads: should be above 0 (found 0)"
    assert rows[0]["parameters"] == ""
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"]


def test_strict_stops_and_leaves_nothing_behind(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "out.jsonl"
    result = invoke("sweep", KIMI, "--vary", "mixers.kda.num_heads=16,0", "--strict", "-o", path)
    assert result.exit_code == 2
    assert "mixers.kda.num_heads=0: mixers.kda.num_heads: should be above 0" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_which_nothing_is_valid_was_asked_wrongly(invoke: Invoke):
    result = invoke("sweep", KIMI, "--vary", "mixers.kda.num_heads=0,-1")
    assert result.exit_code == 2
    assert "none of the 2 variants is valid; the first: mixers.kda.num_heads: should be above 0" in result.stderr


def test_json_lines_and_json_hold_the_same_rows(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "out.jsonl"
    assert invoke("sweep", KIMI, "--vary", HEADS, "-o", path).exit_code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    data = json.loads(invoke("sweep", KIMI, "--vary", HEADS, "--json").stdout)
    assert data["variants"] == lines == sweep(KIMI, [HEADS]).records()
    assert (data["num_variants"], data["num_invalid"], data["lengths_tokens"]) == (2, 0, [4096, 131072])


def test_parquet_holds_the_same_rows(invoke: Invoke, tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "out.parquet"
    assert invoke("sweep", KIMI, "--vary", HEADS, "-o", path).exit_code == 0
    assert parquet.read_table(path).to_pylist() == sweep(KIMI, [HEADS]).records()


def test_parquet_columns_keep_large_and_mixed_values(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "out.parquet"
    write_rows(path, ("large", "mixed", "numbers", "nothing"), [(1 << 70, "none", 1, None), (2, 3, 0.5, None)])
    found = parquet.read_table(path).to_pydict()
    assert [int(value) for value in found["large"]] == [1 << 70, 2]
    assert found["mixed"] == ["none", "3"]
    assert found["numbers"] == [1.0, 0.5]
    assert found["nothing"] == [None, None]


def test_a_parquet_file_without_pyarrow_says_what_to_install(
    shell: Callable[..., CompletedProcess[str]], tmp_path: Path
):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nold = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'pyarrow' else old(name, package)\n"
    )
    result = shell("sweep", KIMI, "--vary", HEADS, "-o", tmp_path / "o.parquet", PYTHONPATH=str(tmp_path))
    assert result.returncode == 2
    assert "a .parquet file needs the extra 'parquet'" in result.stderr


def test_mistakes_of_keys_are_said_at_once(invoke: Invoke):
    result = invoke("sweep", KIMI, "--vary", "mixers.kda.num_head=16", "--vary", "mixers.mla.num_heads=")
    assert result.exit_code == 2
    assert "2 problems" in result.stderr
    assert "mixers.kda.num_head: unknown key. Did you mean num_heads?" in result.stderr
    assert "mixers.mla.num_heads: takes at least one value" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at", "4x"), "is no length"),
        (("-o", "out.xlsx"), "should end in .csv, .jsonl, .parquet"),
        (("--metrics", "flop"), "no metric is called 'flop'. Did you mean flops?"),
        (("--vary", "stack.num_layers=1..900000"), "1,800,000 variants (2 x 900,000) are more than 1,000,000"),
    ],
)
def test_options_that_are_none_end_in_2(invoke: Invoke, options: tuple[str, str], message: str):
    result = invoke("sweep", KIMI, "--vary", HEADS, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_sweep_needs_a_key(invoke: Invoke):
    result = invoke("sweep", KIMI)
    assert result.exit_code == 2
    assert "--vary" in result.stderr


def test_torch_and_numpy_are_never_imported(shell: Callable[..., CompletedProcess[str]], tmp_path: Path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    (tmp_path / "numpy.py").write_text("raise SystemExit('numpy was imported')\n")
    result = shell("sweep", KIMI, "--vary", HEADS, PYTHONPATH=str(tmp_path))
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 3)
