"""The models of a comparison: specs, graphs, files or shipped names, each under a label of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any, TypedDict, TypeVar

from archc.errors import ArchcError, Problem, SpecError
from archc.estimation.estimate import DEFAULT_LENGTH_TOKENS, Estimate, estimate
from archc.expansion import Source, as_graph
from archc.graph.graph import Graph
from archc.planning.timing.estimate import Timing, estimate_time
from archc.spec.schema import Spec

Loaded = TypeVar("Loaded")


class Stated(TypedDict, total=False):
    """The fields of ``Options`` as keywords of ``archc.diff``, ``archc.compare`` and ``archc.plot``."""

    batch_size: int
    source_len: int | None
    dtype: str | None
    kv_cache_dtype: str | None
    block_size: int | None
    gpu: str | None
    gpus: int | None
    hardware: str | PathLike[str] | None
    compute_efficiency: float | None
    memory_efficiency: float | None


@dataclass(frozen=True, slots=True)
class Options:
    """What every model of a comparison is estimated with; None is the spec's own. Lengths are in tokens.

    Without ``gpu``, a device of the catalogue or of the file ``hardware``, nothing is said of time; ``gpus`` are those of each
    model, and the efficiencies are shares of the device's peak and bandwidth, None for the usual ones.
    """

    batch_size: int = 1
    source_len: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    hardware: str | PathLike[str] | None = None
    compute_efficiency: float | None = None
    memory_efficiency: float | None = None

    def __post_init__(self) -> None:
        names = ("gpus", "hardware", "compute_efficiency", "memory_efficiency")
        stated = [name for name in names if getattr(self, name) is not None]
        if self.gpu is None and stated:
            raise ArchcError(f"{', '.join(stated)}: nothing is said of time without a gpu")

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values if self.hardware is None else values | {"hardware": fspath(self.hardware)}

    def stated(self) -> str:
        """The options that are stated, for a title."""
        stated = {name: value for name, value in self.to_json().items() if value is not None}
        return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in stated.items())


@dataclass(slots=True, eq=False, repr=False)
class Model:
    """A traced model under the name that tells it from the others."""

    label: str
    graph: Graph

    def estimate(self, length: int, options: Options) -> Estimate:
        """Its costs at a length in tokens.

        Raises:
            ArchcError: an option is none for this model.
        """
        # An option about encoders is for those that have one: a comparison may have both.
        source_len = options.source_len if self.graph.reads_encoder else None
        return estimate(
            self.graph,
            batch_size=options.batch_size,
            max_model_len=length,
            source_len=source_len,
            dtype=options.dtype,
            kv_cache_dtype=options.kv_cache_dtype,
            block_size=options.block_size,
        )

    def time(self, length: int, options: Options) -> Timing | None:
        """Its times at a length in tokens; None where the options name no device.

        Raises:
            ArchcError: the device is unknown, or an option is none for this model.
        """
        if options.gpu is None:
            return None
        source_len = options.source_len if self.graph.reads_encoder else None
        names = ("compute_efficiency", "memory_efficiency")
        efficiencies = {name: value for name in names if (value := getattr(options, name)) is not None}
        return estimate_time(
            self.graph,
            gpu=options.gpu,
            gpus=options.gpus,
            batch_size=options.batch_size,
            max_model_len=length,
            source_len=source_len,
            dtype=options.dtype,
            kv_cache_dtype=options.kv_cache_dtype,
            hardware=options.hardware,
            # The same tokens as the training step whose FLOPs are counted.
            micro_batches=1,
            **efficiencies,
        )


def open_model(source: Source, overrides: Sequence[str] = (), label: str = "") -> Model:
    """A model by what it is given as; ``overrides`` are ``path=value`` on a file or a shipped name.

    Raises:
        ArchcError: the spec has problems, or there are overrides of what is no file.
    """
    graph = as_graph(source, overrides)
    return Model(label or graph.name, graph)


def all_loaded(loads: Iterable[Callable[[], Loaded]]) -> list[Loaded]:
    """What each load gives.

    Raises:
        SpecError: with the problems of all specs that have some.
    """
    found: list[Loaded] = []
    problems: list[Problem] = []
    for load in loads:
        try:
            found.append(load())
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(list(dict.fromkeys(problems)))
    return found


def open_models(sources: Sequence[Source] | Source, overrides: Sequence[str] = ()) -> list[Model]:
    """Several models, labelled by their names; equal names are numbered.

    Raises:
        ArchcError: there is none, or a spec has problems.
    """
    if isinstance(sources, str | PathLike | Spec | Graph):
        sources = [sources]
    if not sources:
        raise ArchcError("there is no spec to compare")
    models = all_loaded(partial(open_model, source, overrides) for source in sources)
    seen: dict[str, int] = {}
    for model in models:
        seen[model.label] = count = seen.get(model.label, 0) + 1
        if count > 1:
            model.label = f"{model.label} ({count})"
    return models


def common_length(models: Sequence[Model]) -> int:
    """Tokens that all models are made for: the least of their context lengths, where some state one."""
    stated = [model.graph.max_position_embeddings for model in models]
    return min((length for length in stated if length is not None), default=DEFAULT_LENGTH_TOKENS)
