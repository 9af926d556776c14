"""An exported file on onnxruntime against the torch model that its weights come from, however the tokens are cut into calls.

The exporter is reached as every exporter is, by its entry point, and the file is run by what it hands to a judge.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from archc import registry
from archc.graph.graph import Graph
from archc.testing.parity import Calls, WrittenFile, conversations, difference, torch_outputs
from archc.torch_backend.weights import save_weights

NEEDED = ("onnx", "onnx_ir", "onnxruntime", "numpy")


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
    whole = torch_outputs(graph, model, ids)
    size = float(whole.abs().max())

    def judge(file: WrittenFile) -> Sequence[Mapping[str, Any]]:
        outputs = file.run(conversations(ids, ways), in_process=True)
        found: list[dict[str, Any]] = []
        for name, calls in ways.items():
            error = difference(outputs[name], calls, whole).max_abs / size
            assert error <= tolerance, (
                f"ONNX, {name}: onnxruntime differs from torch by {error:.1e} of the largest output, "
                f"more than {tolerance:.1e}"
            )
            found.append({"way": name, "relative": error})
        return found

    with tempfile.TemporaryDirectory(prefix="archc-check-") as folder:
        weights = save_weights(model, Path(folder) / "weights.safetensors")
        with warnings.catch_warnings():
            # Those of onnx's own packages are no concern of the author of a kind.
            warnings.simplefilter("ignore", DeprecationWarning)
            report = registry.load("exporter", "onnx")(
                graph,
                Path(folder) / "out",
                # The provider that runs it, so that its kernels are the ones that are judged.
                provider="cpu",
                dtype="float32",
                weights=weights,
                # Room for the padding of the longest call behind the longest row.
                max_model_len=2 * ids.shape[1],
                check=False,
                judge=judge,
            )
    return max(each["relative"] for each in report.comparisons)
