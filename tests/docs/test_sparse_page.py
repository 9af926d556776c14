"""The figures of docs/sparse_attention.md are what the graph says."""

from __future__ import annotations

import re
from pathlib import Path

from archc.expansion import expand
from archc.ir.size import evaluate
from archc.spec.load import load_spec

PAGE = Path(__file__).parents[2] / "docs" / "sparse_attention.md"


def test_the_keys_that_a_step_reads_are_those_of_the_graph():
    layers = expand(load_spec("nsa-demo")).root.calls()
    body = next(item.body for layer in layers for item in layer.body.calls() if item.body.label == "nsa")
    rows = [
        [int(cell.replace(",", "")) for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| [\d,]+ \|", line)
    ]
    assert len(rows) == 4
    for tokens, *stated in rows:
        env = {"batch": 1, "seq": 1, "past": tokens - 1}
        read = [
            evaluate(node.op.read_elements(role, state), env) // (4 * 192)
            for node in body.nodes()
            for role, state in node.states.items()
            if role in ("compressed_key", "key")
        ]
        assert [*read, sum(read)] == stated
