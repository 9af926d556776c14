"""An exported file on onnxruntime against the torch model that its weights come from, however the tokens are cut into calls.

The exporter is reached as every exporter is, by its entry point, and the file is run by onnxruntime's own interface.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archc import registry
from archc.graph.graph import Graph
from archc.torch_backend.weights import save_weights

NEEDED = ("onnx", "onnx_ir", "onnxruntime", "numpy")
PAST, PRESENT = "past_key_values", "present"
Calls = Sequence[tuple[int, ...]]
"""Valid new tokens of each row, a call after the other."""


def missing() -> str | None:
    """What the check would need and is not installed; None when all is there."""
    absent = [module for module in NEEDED if find_spec(module) is None]
    if absent:
        return f"{', '.join(absent)} not installed"
    return None if "onnx" in registry.names("exporter") else "no exporter named onnx is installed"


def check_onnx(graph: Graph, model: nn.Module, ids: Tensor, ways: dict[str, Calls], *, tolerance: float) -> float:
    """The largest difference of onnxruntime's outputs (float32, CPU) from torch's, as a share of torch's largest.

    ``ways`` are the ways to cut ``ids`` (batch, length) into calls, by name. Every row is compared with torch's forward
    over the whole of ``ids``.

    Raises:
        ArchcError: the exporter refuses the graph.
        AssertionError: outputs differ by more than ``tolerance``.
    """
    # Room for the padding of the longest call behind the longest row.
    max_model_len = 2 * ids.shape[1]
    with torch.no_grad():
        whole = model(ids)
    if "logits" in graph.outputs and graph.vocab_size is not None:
        whole = whole[..., : graph.vocab_size]
    size, worst = float(whole.abs().max()), 0.0
    with tempfile.TemporaryDirectory(prefix="archc-check-") as folder:
        weights = save_weights(model, Path(folder) / "weights.safetensors")
        with warnings.catch_warnings():
            # Those of onnx's own packages are no concern of the author of a kind.
            warnings.simplefilter("ignore", DeprecationWarning)
            out = Path(folder) / "out"
            export = registry.load("exporter", "onnx")
            export(graph, out, dtype="float32", weights=weights, max_model_len=max_model_len, check=False)
        session = _session(out / "model.onnx")
        for name, calls in ways.items():
            file = _File(session, batch=ids.shape[0], capacity=graph.capacity(max_model_len))
            error = _differences(file, ids, whole, calls) / size
            assert error <= tolerance, (
                f"ONNX, {name}: onnxruntime differs from torch by {error:.1e} of the largest output, "
                f"more than {tolerance:.1e}"
            )
            worst = max(worst, error)
    return worst


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _differences(file: _File, ids: Tensor, whole: Tensor, calls: Calls) -> float:
    done, worst = [0] * ids.shape[0], 0.0
    for counts in calls:
        # Padding is some token, so that one which is let in shows.
        padded = torch.ones(len(counts), max(counts), dtype=torch.int64)
        for row, count in enumerate(counts):
            padded[row, :count] = ids[row, done[row] : done[row] + count]
        got = file.step(padded, counts)
        for row, count in enumerate(counts):
            if count:
                want = whole[row, done[row] : done[row] + count]
                assert got[row, :count].shape == want.shape, f"ONNX gives {tuple(got.shape)}, torch {tuple(want.shape)}"
                worst = max(worst, float((got[row, :count] - want).abs().max()))
            done[row] += count
    return worst


class _File:
    """A file and its caches, which each call hands to the next."""

    def __init__(self, session: Any, *, batch: int, capacity: int) -> None:
        self.session = session
        self.inputs = {given.name: given for given in session.get_inputs()}
        self.output = session.get_outputs()[0].name
        sizes: dict[Any, int] = {"batch": batch, "capacity": capacity}
        self.caches: dict[str, Any] = {
            name: torch.zeros(*(dim if isinstance(dim, int) else sizes[dim] for dim in given.shape)).numpy()
            for name, given in self.inputs.items()
            if name.startswith(PAST)
        }
        self.past = torch.zeros(batch, dtype=torch.int64)

    def step(self, ids: Tensor, counts: Sequence[int]) -> Tensor:
        """Outputs (batch, seq, width) of right-padded tokens (batch, seq)."""
        new, kv_length = torch.tensor(counts), self.past + ids.shape[1]
        lengths = {
            "input_ids": ids,
            "past_length": self.past,
            "seq_length": new,
            "kv_length": kv_length,
            "max_length": kv_length.max().view(1),
        }
        feeds = {name: tensor.numpy() for name, tensor in lengths.items() if name in self.inputs}
        further = [name for name in self.inputs if name not in (*feeds, *self.caches)]
        feeds.update({name: torch.zeros_like(ids).numpy() for name in further})
        names = [self.output, *(PRESENT + name.removeprefix(PAST) for name in self.caches)]
        output, *kept = self.session.run(names, {**feeds, **self.caches})
        self.caches = dict(zip(self.caches, kept, strict=True))
        self.past = self.past + new
        return torch.from_numpy(output)
