"""A checkpoint beside the model that its configuration describes: every tensor needed, every weight filled, or an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archc.checkpoint.family import PUBLISHED, Checkpoint
from archc.checkpoint.heads import HEAD, are_equal, stored_head
from archc.checkpoint.importing import Imported, import_config
from archc.checkpoint.plan import Match, Part, Plan, match, naming_of, plan
from archc.checkpoint.reading import has_tensors
from archc.checkpoint.rules import Naming, Rule, renamed
from archc.checkpoint.tensors import Shape, Stored, legal_dtypes, opened
from archc.errors import ArchcError
from archc.graph.graph import Graph
from archc.ir.values import Param


@dataclass(frozen=True, slots=True)
class Model:
    """A graph, and the family and configuration of a checkpoint that is to fill it."""

    checkpoint: Checkpoint
    config: Mapping[str, Any]
    graph: Graph

    @classmethod
    def of(cls, imported: Imported) -> Model:
        """The model that a configuration describes."""
        return cls(imported.checkpoint, imported.config, imported.graph)

    def layouts(self) -> Mapping[str, Sequence[Rule]]:
        """What the checkpoint's tensors may be."""
        return self.checkpoint.layouts(self.graph, self.config)

    def plan(self, layout: str = PUBLISHED) -> Plan:
        """What every weight is filled by, in one of the family's layouts."""
        return plan(self.layouts()[layout], shapes_of(self.graph))


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan whose tensors are there, the file's names of them, dtypes of weights, and copies of tied tensors."""

    plan: Plan
    layout: str
    """Which of the family's sets of rules the plan is made of."""
    match: Match
    dtypes: Mapping[str, str]
    copies: Mapping[str, str]
    """Name in the file -> the tensor there that it repeats."""


def import_folder(path: str | Path, *, name: str | None = None) -> Imported:
    """As ``import_config``; tensors in the folder say whether the head is tied, and their dtype where nothing else does.

    Raises:
        ArchcError: the configuration can't be honoured, or the files of tensors can't be read.
    """
    place = Path(path)
    if not place.is_dir() or not has_tensors(place):
        return import_config(place, name=name)
    with opened(place) as stored:
        dtype = _dtype_of(stored)
        imported = import_config(place, name=name, dtype=dtype)
        if HEAD in imported.graph.params():
            return imported
        model = Model.of(imported)
        layout, _, naming = _fitting(model, stored)
        pair = _head_of(model, stored, layout, naming)
        if pair is None:
            return imported
        head, embedding = pair
        if are_equal(head, embedding, stored):
            return imported.noting(_FLAG, f"{head} of the checkpoint repeats {embedding}")
    untied = import_config(place, name=name, dtype=dtype, untied=True)
    return untied.noting(_FLAG, f"{head} of the checkpoint differs from {embedding}: untied, as transformers loads it")


_FLAG = "tie_word_embeddings"
_SPEC_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_DEQUANTISERS = {"mxfp4": "Mxfp4Config", "fp8": "FineGrainedFP8Config"}
"""What transformers dequantises with, by ``quant_method``."""


def _dtype_of(stored: Stored) -> str | None:
    """What most bytes of the weights are stored in, where a spec can say it."""
    counts: Counter[str] = Counter()
    for home in stored.homes.values():
        if home.dtype in _SPEC_DTYPES:
            counts[_SPEC_DTYPES[home.dtype]] += home.size_bytes
    return counts.most_common(1)[0][0] if counts else None


def checked(stored: Stored, model: Model, *, allow_unused: Sequence[str] = ()) -> Checked:
    """The plan of a checkpoint for a model.

    Raises:
        ArchcError: tensors are missing, left over, misshapen or of a dtype that weights can't have; all of them are listed.
    """
    family = model.checkpoint
    layout, found, naming = _fitting(model, stored)
    pair = _head_of(model, stored, layout, naming)
    pairs = [(renamed(alias, naming), renamed(of, naming)) for alias, of in family.aliases.items()]
    copies = {
        alias: of
        for alias, of in (*pairs, *([] if pair is None else [pair]))
        if alias != of and {alias, of} <= stored.homes.keys() and are_equal(alias, of, stored)
    }
    matched = match(
        found,
        stored.shapes,
        namings=(naming,),
        dropped=family.drops(model.config),
        left_out=family.left_out(model.config),
        allow_unused=allow_unused,
        copies=tuple(copies),
    )
    dtypes, strange = _dtypes(found.parts, matched.names, stored, model.graph.params())
    hints = list(matched.hints)
    quantised = _quantisation(model.config)
    if strange or quantised is not None:
        hints.append(_dequantise(quantised or {}))
    if any(part.ours == (HEAD,) and matched.names[part.theirs] not in stored.shapes for part in found.parts):
        hints.append(f"the model's head is not tied to the embedding ({_FLAG}), and the checkpoint has none")
    hints += [
        f"{alias} differs from {of}, and is one with it in this family"
        for alias, of in pairs
        if alias != of and {alias, of} <= stored.homes.keys() and alias not in copies
    ]
    if pair is not None and pair[0] not in copies:
        hints.append(f"{pair[0]} differs from {pair[1]}, so the head is not tied: import the folder, not its {_FLAG}")
    raise_all(stored.folder, [*matched.problems, *strange], hints)
    return Checked(found, layout, matched, dtypes, copies)


def _quantisation(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How a configuration says that its tensors are quantised; that of a nested text model may say it, too."""
    places = (config, *(inner for inner in config.values() if isinstance(inner, Mapping)))
    found = (place.get("quantization_config") for place in places)
    return next((entry for entry in found if isinstance(entry, Mapping)), None)


def _dequantise(quantised: Mapping[str, Any]) -> str:
    """What to do with a quantised checkpoint."""
    method = quantised.get("quant_method")
    named = f" ({method})" if method else ""
    how = _DEQUANTISERS.get(str(method))
    how = f"quantization_config={how}(dequantize=True), dtype=torch.bfloat16" if how else "dtype=torch.bfloat16"
    return (
        f"the checkpoint is quantised{named}; dequantise it first: transformers' from_pretrained with {how}, "
        "then save_pretrained"
    )


def _fitting(model: Model, stored: Stored) -> tuple[str, Plan, Naming]:
    """(name of the layout, its plan, the naming) by which a file lacks the fewest tensors; the published one if equal."""
    best: tuple[int, str, Plan, Naming] | None = None
    for name in model.layouts():
        found = model.plan(name)
        naming = naming_of(found, stored.shapes, model.checkpoint.namings())
        missing = sum(renamed(part.theirs, naming) not in stored.shapes for part in found.parts)
        if best is None or missing < best[0]:
            best = (missing, name, found, naming)
    assert best is not None
    return best[1:]


def _head_of(model: Model, stored: Stored, layout: str, naming: Naming) -> tuple[str, str] | None:
    """Names of the head's tensor and the embedding's, where the model has one for both and the checkpoint two."""
    return None if HEAD in model.graph.params() else stored_head(model.layouts()[layout], naming, stored)


def shapes_of(graph: Graph) -> dict[str, Shape]:
    """Name -> shape of every weight, in the order of the graph."""
    return {name: tuple(param.shape) for name, param in graph.params().items()}


def raise_all(source: Path, problems: Sequence[str], hints: Sequence[str] = ()) -> None:
    """Say everything that is wrong at once.

    Raises:
        ArchcError: something is.
    """
    if problems:
        lines = "\n  ".join((*problems, *hints))
        count = len(problems)
        raise ArchcError(
            f"{source}: {'1 tensor does' if count == 1 else f'{count} tensors do'} not fit the model\n  {lines}"
        )


def _dtypes(
    parts: Sequence[Part], names: Mapping[str, str], stored: Stored, params: Mapping[str, Param]
) -> tuple[dict[str, str], list[str]]:
    """(dtype of every weight: that of the tensors that fill it, which must agree; problems)."""
    dtypes: dict[str, str] = {}
    problems: list[str] = []
    for part in parts:
        name = names[part.theirs]
        dtype = stored.dtypes.get(name)
        if dtype is None:
            continue
        legal = legal_dtypes(params[part.ours[0]])
        if dtype not in legal:
            problems.append(f"{name} is {dtype}; weights should be {', '.join(legal)}")
            continue
        for ours in part.ours:
            if dtypes.setdefault(ours, dtype) != dtype:
                problems.append(f"{name} is {dtype}, other parts of {ours} are {dtypes[ours]}")
    return dtypes, problems
