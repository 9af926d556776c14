"""Predicted placements of onnx's conformance models, node by node, against the CUDA provider that this machine loads.

Needs onnx, and an onnxruntime-gpu whose CUDA provider loads: a GPU, or libraries that stand in for CUDA's, since nothing is
computed. Every session is made in a fork of its own, because a kernel may break while it is built.

    python benchmarks/placement_conformance.py
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter, defaultdict
from typing import Any

import onnx
import onnxruntime as ort

from archc_exporters.onnx.placement.predict import predict
from archc_exporters.onnx.placement.probe import session
from archc_exporters.onnx.placement.tables import CPU, CUDA

NAMES = {CUDA: "cuda", CPU: "cpu"}
SHOWN = 10


def main() -> None:
    """Print how many models load, how many nodes are placed as predicted, and the first that are not."""
    ort.set_default_logger_severity(4)
    outcomes: Counter[str] = Counter()
    nodes = agreed = 0
    wrong: dict[str, list[str]] = defaultdict(list)
    for name, model in conformance_models():
        placed = in_a_fork(model)
        outcomes["did not load" if placed is None else "loaded"] += 1
        if placed is None:
            continue
        for site in predict(model, "cuda").sites:
            nodes += 1
            real = placed.get(site.name)
            if real == site.provider or (real is None and site.reason == "decomposed"):
                agreed += 1
            else:
                wrong[f"{real} and not {site.provider or 'nothing'} ({site.reason})"].append(
                    f"{name}: {site.node.op_type}"
                )
    print(f"onnxruntime {ort.__version__}, models: {dict(outcomes)}, nodes: {nodes}, placed as predicted: {agreed}")
    for what, where in wrong.items():
        print(f"  {len(where)} on {what}: {', '.join(where[:SHOWN])}")


def conformance_models() -> list[tuple[str, onnx.ModelProto]]:
    """onnx's own models of single ops and of their functions, nodes named by their number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases: list[Any] = collect_testcases(None)
    for case in cases:
        for number, node in enumerate(case.model.graph.node):
            node.name = f"node {number}"
    return [(case.name, case.model) for case in cases]


def in_a_fork(model: onnx.ModelProto) -> dict[str, str] | None:
    """Node -> provider, or None where no session could be made."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            json.dump(_ask(model), stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def _ask(model: onnx.ModelProto) -> dict[str, str] | None:
    try:
        made = session(model, (CUDA, CPU))
    except Exception:  # onnxruntime raises a family of its own: the model has an op or an opset that the release lacks.
        return None
    assert CUDA in made.get_providers(), "the CUDA provider does not load here"
    return {
        node.name: NAMES[part.ep_name]
        for part in made.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    }


if __name__ == "__main__":
    main()
