"""Weights of a published checkpoint, put together under the graph's names while they are written."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from archc.checkpoint.filling import Foreign, foreign
from archc.graph.graph import Graph
from archc.ir.values import Param
from archc_exporters.onnx.arrays import Array


class ForeignWeights:
    """A folder as transformers saves it; a tensor is read from it whenever it is asked for.

    Raises:
        ArchcError: the family is not known, or tensors and weights don't fit; all problems at once.
    """

    def __init__(self, path: Path, graph: Graph) -> None:
        self._open = ExitStack()
        self._checkpoint: Foreign = self._open.enter_context(foreign(path, graph))

    def read(self, name: str, param: Param) -> Array:
        """The tensor in the dtype that it is stored in."""
        return self._checkpoint.read(name)

    def release(self, name: str) -> None:
        """Nothing is kept but the tensor that was read last."""

    def __del__(self) -> None:
        # The files stay open as long as weights may be asked for, which is as long as this lives.
        if hasattr(self, "_open"):
            self._open.close()
