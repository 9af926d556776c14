"""Retention (RetNet, arXiv 2307.08621) as a third party's package: everything works, and archc is not touched."""

from __future__ import annotations

import ast
import io
import json
import tokenize
from pathlib import Path

import pytest

from archc.errors import SpecError
from archc.spec.load import loads_spec
from tests.thirdparty.conftest import PACKAGE

SPEC = """\
spec_version: 1
name: retnet-hybrid
tokenizer: {kind: external, vocab_size: 50}
embedding: {hidden_size: 32, tie_word_embeddings: true}
position: {kind: rope, theta: 10000.0}
norm: {kind: rms_norm, eps: 1.0e-5}
max_position_embeddings: 64
mixers:
  retention: {kind: retention, num_heads: 4, head_dim: 8}
  attention: {kind: gqa, num_heads: 4, num_kv_heads: 1, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 4, block: pre_norm, mixer: retention*3 attention, ffn: mlp}
"""
RETENTION, ATTENTION, MLP = 5 * 32 * 32 + 8, 32 * 8 * (4 + 1 + 1 + 4), 3 * 32 * 48
PARAMETERS = 50 * 32 + 3 * RETENTION + ATTENTION + 4 * MLP + (2 * 4 + 1) * 32


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "retnet.yaml"
    path.write_text(SPEC)
    return path


def code_lines(path: Path) -> int:
    """Lines that hold code: neither blank nor comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    documented = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef))]
    said: set[int] = set()
    for node in documented:
        if ast.get_docstring(node) is not None:
            said.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    held = {line for t in tokens if t.type not in skipped for line in range(t.start[0], t.end[0] + 1)}
    return len(held - said)


def test_it_takes_fewer_than_60_lines_of_code_and_13_more_to_say_what_backward_keeps():
    counts = {path.name: code_lines(path) for path in sorted((PACKAGE / "archc_retention").glob("*.py"))}
    kind = (PACKAGE / "archc_retention" / "kind.py").read_text(encoding="utf-8")
    # What backward keeps is said last, and with one import.
    said = len(kind[kind.index("    def saves") :].rstrip().splitlines()) - 1 + 1
    assert "# Numbers that no token changes" in kind
    assert said == 13
    assert sum(counts.values()) - said < 60, counts


def test_it_is_listed_with_its_package(python):
    rows = json.loads(python("-m", "archc", "plugins", "--family", "mixer", "--json"))["plugins"]
    (row,) = [row for row in rows if row["name"] == "retention"]
    assert (row["package"], row["version"], row["target"]) == (
        "archc-retention",
        "0.1",
        "archc_retention.kind:Retention",
    )


def test_it_is_validated_and_estimated_from_the_command_line(python, spec):
    assert python("-m", "archc", "validate", spec) == f"{spec}: ok\n"
    found = json.loads(python("-m", "archc", "estimate", spec, "--batch-size", 2, "--json"))
    assert found["parameters"]["total"] == PARAMETERS
    assert "4" in python("-m", "archc", "show", spec)


@pytest.mark.torch
def test_it_is_built(python, spec):
    pytest.importorskip("torch")
    assert f"{PARAMETERS:,}" in python("-m", "archc", "build", spec)


@pytest.mark.torch
@pytest.mark.onnx
def test_it_is_exported_in_half_precision_and_the_file_runs(python, spec, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    found = json.loads(python("-m", "archc", "export", spec, "-o", tmp_path / "out", "--json"))
    assert (tmp_path / "out" / "model.onnx").stat().st_size > 0
    assert [cache["name"] for cache in found["caches"] if cache["name"].endswith("state")] == [
        f"past_key_values.{layer}.state" for layer in range(3)
    ]


@pytest.mark.torch
def test_it_keeps_the_contract_that_the_first_party_keeps(python, tmp_path):
    pytest.importorskip("torch")
    test = tmp_path / "check.py"
    test.write_text(
        "from archc.testing import check_kind\n"
        "print(check_kind('mixer.retention', {'num_heads': 2, 'head_dim': 8}))\n"
        f"print(check_kind('mixer.retention', spec={SPEC!r}))\n"
    )
    lines = python(test).splitlines()
    assert lines.count("mixer.retention:") == 2
    from archc.testing.onnx_values import missing

    if missing() is None:
        assert sum(line.startswith("  ONNX = torch: whole, chunks") for line in lines) == 2


@pytest.mark.torch
def test_its_values_are_those_of_the_paper(python, tmp_path):
    pytest.importorskip("torch")
    test = tmp_path / "paper.py"
    test.write_text(
        """
import torch
from archc_retention.kind import Retain
from archc_retention.torch_lowering import Retain as Leaf

heads, dim, tokens = 3, 4, 9
decays = tuple(1 - 2.0 ** (-5 - head) for head in range(heads))
q, k, v = torch.randn(3, 2, tokens, heads * dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
state, outs = torch.zeros(2, heads, dim, dim, dtype=torch.float64), []
for t in range(tokens):
    qt, kt, vt = (x[:, t].unflatten(-1, (heads, dim)) for x in (q, k, v))
    state = torch.tensor(decays, dtype=torch.float64).view(-1, 1, 1) * state + kt.unsqueeze(-1) * vt.unsqueeze(-2)
    outs.append((qt.unsqueeze(-1) * state).sum(-2) * dim**-0.5)
want = torch.stack(outs, 1).flatten(2)
leaf = Leaf()
leaf.op, leaf.twin = Retain(decays=decays, head_dim=dim), None
got = leaf(q, k, v)
torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
print(float(want.abs().max()))
"""
    )
    assert float(python(test)) > 1


def test_where_it_is_not_installed_its_spec_says_what_is_missing():
    with pytest.raises(SpecError, match=r"unknown mixer \(found retention\)"):
        loads_spec(SPEC)
