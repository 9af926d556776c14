"""The two questions that can be asked of a file: where its nodes go, and what it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx.inliner import inline_local_functions

from archc.errors import ArchcError, CheckFailedError
from archc_exporters.onnx.placement.element_types import element_types, opsets
from archc_exporters.onnx.placement.live import ask_session, can_ask
from archc_exporters.onnx.placement.predict import predict
from archc_exporters.onnx.placement.report import Limit, Placement, report
from archc_exporters.onnx.placement.shapes import Shapes
from archc_exporters.onnx.placement.summary import Summary, summary
from archc_exporters.onnx.placement.tables import RELEASE

HIGHEST_OPSET, HIGHEST_IR = 26, 13
"""What release 1.31 reads."""


def check_provider(path: Path, provider: str = "cuda") -> Placement:
    """Where the nodes of a file go; weights beside it are not read, and need not exist.

    A machine with a GPU and the weights is asked itself: it loads the file. Elsewhere the kernel registry of the release
    that files are made for answers.

    Raises:
        ArchcError: the file can't be read, or the provider is unknown.
    """
    return place(read(path), path, provider)


def require_provider(path: Path, provider: str) -> Placement:
    """``check_provider`` of a file that has to run on the provider, all but its shape arithmetic.

    Raises:
        CheckFailedError: nodes leave the provider, or can't run on it; the message has the reasons.
    """
    placement = check_provider(path, provider)
    objections = placement.objections()
    if objections:
        lines = "".join(f"\n  {line}" for line in objections)
        raise CheckFailedError(f"{path.name} does not run on {provider}, says {placement.source}:{lines}")
    return placement


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a file is, and where its nodes go."""

    summary: Summary
    placement: Placement

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return self.summary.to_json() | {"placement": self.placement.to_json()}


def inspect(path: Path, provider: str = "cuda") -> Inspection:
    """The outline and the placement of a file; see ``check_provider``."""
    model = read(path)
    return Inspection(summary(model, path), place(model, path, provider))


def place(model: onnx.ModelProto, path: Path, provider: str) -> Placement:
    """``check_provider`` of a model that is read already."""
    root = predict(model, provider)
    predicted = report(root, provider=provider, types=element_types(model), shapes=Shapes(model))
    predicted = replace(predicted, limits=(*_of_file(model), *predicted.limits))
    if provider == "cuda" and can_ask(model, path):
        return ask_session(path, predicted)
    return predicted


def read(path: Path) -> onnx.ModelProto:
    """The model without its external data.

    Raises:
        ArchcError: the file is missing, or is no ONNX model.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ArchcError(f"{path} can't be read: {error.strerror}") from error
    except DecodeError as error:
        raise ArchcError(f"{path} is no ONNX model: {error}") from error
    if not model.graph.node:
        raise ArchcError(f"{path} is no ONNX model: it has no nodes")
    # As onnxruntime does before anything else; nodes of the functions' bodies get names of their own.
    return inline_local_functions(model) if model.functions else model


def _of_file(model: onnx.ModelProto) -> list[Limit]:
    """Limits of the file as a whole."""
    found: list[Limit] = []
    version = opsets(model).get("", 0)
    for what, number, highest in (("opset", version, HIGHEST_OPSET), ("IR version", model.ir_version, HIGHEST_IR)):
        if number > highest:
            message = f"{what} {number}: onnxruntime {RELEASE} reads up to {highest}"
            found.append(
                Limit(op="model", severity="fails", message=message, choice=f"{what} {highest}", nodes=("file",))
            )
    return found
