"""A family of checkpoints: how its configuration reads, and what its tensors are called. Data and one small function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.config import Config
from archc.checkpoint.rules import Dropped, LeftOut, Naming, Rule
from archc.graph.graph import Graph

PUBLISHED = "published"
"""Name of the layout that ``rules`` give."""


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
    aliases: ClassVar[Mapping[str, str]] = {}
    """Name -> the tensor of the rules that it repeats, in files that hold a tied one more than once."""
    other_namings: ClassVar[Sequence[Naming]] = ()
    """How else files write the rules' names, as pairs of beginnings: ``(("model.", "model.language_model."),)``."""

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        """Parts of published files that archc does not build, such as towers and layers that predict further tokens.

        They are still an error, which names the pattern that ``--allow-unused`` takes.
        """
        return ()

    def drops(self, config: Mapping[str, Any]) -> Sequence[Dropped]:
        """Tensors that are left out without asking: ``dropped``, and those whose names depend on the configuration."""
        return self.dropped

    def untied(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a file whose head is not the embedding, whatever it says of that itself."""
        return {**config, "tie_word_embeddings": False}

    def dtype(self, config: Config) -> str:
        """dtype of the weights, by torch's name."""
        return config.take("dtype", "torch_dtype", default="float32") or "float32"

    def namings(self) -> tuple[Naming, ...]:
        """Every way in which a file may write the rules' names; the first is the rules' own."""
        without = (((self.optional_prefix, ""),),) if self.optional_prefix else ()
        return ((), *without, *self.other_namings)

    @abstractmethod
    def spec(self, config: Config) -> dict[str, Any]:
        """The spec of a configuration, without ``spec_version`` and ``name``, as plain data in the order to be written."""

    @abstractmethod
    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        """What the checkpoint's tensors are; rules whose weights the graph has not are left out by the caller."""

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        """Rules for files that hold the tensors otherwise, such as all experts in one; their names are for people."""
        return {}

    def layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        """Every set of rules by name, the published one first, under PUBLISHED. The one that fits a file is used."""
        return {PUBLISHED: self.rules(graph, config), **self.other_layouts(graph, config)}


class Nested(Checkpoint):
    """A model of several towers, of which archc reads the one for text: another family, under a key of the configuration.

    A family of this kind is four facts: ``text``, ``other_namings`` (or ``left_out``'s towers by name), ``outer_defaults``
    and ``outer_no_effect``.
    """

    text: ClassVar[type[Checkpoint]]
    """The family of the text model."""
    section: ClassVar[str] = "text_config"
    """Where its configuration is."""
    outer_wins: ClassVar[Sequence[str]] = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    """Keys that the outer configuration may state, and which then count for the text model too."""
    outer_no_effect: ClassVar[Mapping[str, str]] = {}
    """Keys of the outer configuration beside these, with the reason why the text model doesn't need them."""
    towers: ClassVar[Sequence[LeftOut]] = ()
    """The other towers' tensors."""
    defaults: ClassVar[Mapping[str, Any]] = {}

    def dtype(self, config: Config) -> str:
        inner = config.data.get(self.section)
        if config.has("dtype") or config.has("torch_dtype") or not isinstance(inner, Mapping):
            return super().dtype(config)
        return str(inner.get("dtype") or inner.get("torch_dtype") or "float32")

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        return (*self.towers, *self.text().left_out(config[self.section]))

    def drops(self, config: Mapping[str, Any]) -> Sequence[Dropped]:
        return (*self.dropped, *self.text().drops(config[self.section]))

    def spec(self, config: Config) -> dict[str, Any]:
        inner = config.section(self.section, defaults=self.text.defaults)
        if inner is None:
            config.problems.append(f"{self.section} is missing; it describes the text model")
            return {}
        for name, why in self.outer_no_effect.items():
            config.ignore(name, why=why)
        for name in ("dtype", "torch_dtype"):
            inner.ignore(name, why="used as dtype where the outer configuration says none")
        for name in self.outer_wins:
            if config.has(name) or self.defaults.get(name) is not None:
                inner.state(name, config.take(name), why=f"{name} of the whole model says it")
            else:
                config.ignore(name, why=f"null; {self.section} says it")
        body = self.text().spec(inner)
        inner.finish()
        return body

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return self.text().rules(graph, config[self.section])

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return self.text().other_layouts(graph, config[self.section])
