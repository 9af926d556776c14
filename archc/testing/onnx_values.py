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
from archc.testing.feeding import Given
from archc.testing.parity import Calls, WrittenFile, conversations, difference, still_inputs, torch_outputs
from archc.testing.whole import feeds_of, file_rows, passes, torch_rows
from archc.torch_backend.weights import save_weights

NEEDED = ("onnx", "onnx_ir", "onnxruntime", "numpy")


def missing() -> str | None:
    """What the check would need and is not installed; None when all is there."""
    absent = [module for module in NEEDED if find_spec(module) is None]
    if absent:
        return f"{', '.join(absent)} not installed"
    return None if "onnx" in registry.names("exporter") else "no exporter named onnx is installed"


def check_onnx(
    graph: Graph,
    model: nn.Module,
    ids: Tensor,
    ways: dict[str, Calls],
    *,
    tolerance: float,
    given: Given | None = None,
) -> float:
    """The largest difference of onnxruntime's outputs (float32, CPU) from torch's, as a share of torch's largest.

    ``ways`` are the ways to cut ``ids`` (batch, length) into calls, by name. Every row is compared with torch's forward
    over the whole of ``ids``. ``given`` has the other inputs, where the graph wants any: what stays the same from call to
    call, an encoder's tokens as they are and padded on either side. A graph that sees all tokens at once is
    fed them once, padded on either side too, and all of its outputs are compared.

    Raises:
        ArchcError: the exporter refuses the graph.
        AssertionError: outputs differ by more than ``tolerance``.
    """

    def judge(file: WrittenFile) -> Sequence[Mapping[str, Any]]:
        if graph.mask == "bidirectional":
            found = _whole_errors(graph, model, file)
        else:
            found = _call_errors(graph, model, file, ids, ways, given)
        for way, error in found.items():
            assert error <= tolerance, (
                f"ONNX, {way}: onnxruntime differs from torch by {error:.1e} of the largest output, "
                f"more than {tolerance:.1e}"
            )
        return [{"way": way, "relative": error} for way, error in found.items()]

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
                max_model_len=2 * ids.shape[1] if ids.dim() == 2 else None,
                check=False,
                judge=judge,
            )
    return max(each["relative"] for each in report.comparisons)


def _call_errors(
    graph: Graph, model: nn.Module, file: WrittenFile, ids: Tensor, ways: dict[str, Calls], given: Given | None
) -> dict[str, float]:
    """Way of cutting tokens into calls -> the largest difference, as a share of the largest output."""
    found: dict[str, float] = {}
    for name, still in still_inputs(graph, given).items():
        whole = torch_outputs(graph, model, ids, still)
        outputs = file.run(
            conversations(ids, ways), in_process=True, given={each: still[each].numpy() for each in still}
        )
        size = float(whole.abs().max())
        for way, calls in ways.items():
            error = difference(outputs[way], calls, whole, length=ids.shape[1]).max_abs / size
            found[f"{way}, {name}" if name else way] = error
    return found


def _whole_errors(graph: Graph, model: nn.Module, file: WrittenFile) -> dict[str, float]:
    """Way of padding -> the largest difference of any output, as a share of that output's largest."""
    ways = passes(graph)
    outputs = file.encode({name: feeds_of(graph, given) for name, given in ways.items()}, in_process=True)
    found: dict[str, float] = {}
    for name, given in ways.items():
        want, got = torch_rows(graph, model, given), file_rows(graph, outputs[name], given)
        for output, rows in want.items():
            error = float((got[output] - rows).abs().max() / rows.abs().max())
            found[name] = max(found.get(name, 0.0), error)
    return found
