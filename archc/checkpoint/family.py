"""A family of checkpoints: how its configuration reads, and what its tensors are called. Data and one small function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.config import Config
from archc.checkpoint.rules import Dropped, Rule
from archc.graph.graph import Graph


class Checkpoint(ABC):
    """Registered in the entry-point group ``archc.checkpoint`` under its ``model_type``."""

    model_class: ClassVar[str]
    """Name of the class in transformers that computes it; written to ``architectures``."""
    defaults: ClassVar[Mapping[str, Any]]
    """What transformers' configuration class (5.24) assumes where the file says nothing."""
    dropped: ClassVar[Sequence[Dropped]] = ()
    """Tensors of published files that hold no weight."""
    optional_prefix: ClassVar[str] = ""
    """Beginning of their names that some files leave out."""

    @abstractmethod
    def spec(self, config: Config) -> dict[str, Any]:
        """The spec of a configuration, without ``spec_version`` and ``name``, as plain data in the order to be written."""

    @abstractmethod
    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        """What the checkpoint's tensors are; rules whose weights the graph has not are left out by the caller."""
