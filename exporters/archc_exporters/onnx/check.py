"""What a file must survive before it counts as exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx.checker import ValidationError, check_model

from archc.errors import CheckFailedError
from archc.graph.graph import Graph
from archc_exporters.onnx.session import Conversation, load_session

_PLACES = ((1, 5), (2, 3))
"""(batch, seq) of the two runs: different in both, so that a shape that works at one size only is found."""
_DECODE_STEPS = 2


def check_structure(path: Path) -> list[str]:
    """onnx's own checker, and symbolic batch and seq in every output that has them.

    Raises:
        CheckFailedError: the file is malformed.
    """
    try:
        check_model(str(path))
    except ValidationError as error:
        raise CheckFailedError(f"{path.name}: onnx.checker refuses the file: {error}") from error
    graph = onnx.load(path, load_external_data=False).graph
    for output in graph.output:
        dims = [dim.dim_param or dim.dim_value for dim in output.type.tensor_type.shape.dim]
        wanted = ["batch", "seq"] if not output.name.startswith("present") else ["batch"]
        if dims[: len(wanted)] != wanted:
            raise CheckFailedError(f"{path.name}: {output.name} is {dims}; its first dimensions should be {wanted}")
    return [f"structure: onnx.checker, {len(graph.node)} nodes, batch and seq symbolic"]


def check_runs(path: Path, graph: Graph) -> list[str]:
    """Prefill and decode on onnxruntime's CPU at two sizes of batch and seq, right-padded rows included; all numbers finite.

    Raises:
        CheckFailedError: the file does not load, does not run, or gives something else than finite numbers.
    """
    # Seven tokens fit any file: even a rope table for one position has as many rows as the smallest capacity, 8.
    capacity = graph.capacity(max(seq for _, seq in _PLACES) + _DECODE_STEPS)
    vocabulary = graph.vocab_size or 1
    rng = np.random.default_rng(0)
    lines: list[str] = []
    try:
        session = load_session(path)
        for batch, seq in _PLACES:
            talk = Conversation(session, batch=batch, capacity=capacity)
            valid = np.array([seq, *[seq - 1] * (batch - 1)])
            shapes = [(batch, seq, valid)] + [(batch, 1, None)] * _DECODE_STEPS
            for rows, columns, new in shapes:
                y = talk.step(rng.integers(0, vocabulary, (rows, columns)), new)
                if y.shape[:2] != (rows, columns) or not np.isfinite(y).all():
                    raise CheckFailedError(
                        f"{path.name}: ({rows}, {columns}) tokens give {y.shape}, or numbers not finite"
                    )
                broken = [name for name, cache in talk.caches.items() if not np.isfinite(cache).all()]
                if broken:
                    raise CheckFailedError(f"{path.name}: caches are not finite: {', '.join(broken)}")
            lines.append(f"run: batch {batch}, prefill {seq}, decode {_DECODE_STEPS} on CPUExecutionProvider, finite")
    except CheckFailedError:
        raise
    except Exception as error:  # onnxruntime raises a family of its own, based on Exception itself.
        raise CheckFailedError(f"{path.name}: onnxruntime refuses the file: {error}") from error
    return lines
