"""A configuration becomes a spec: the family reads it, every key is accounted for, and the text is read back and expanded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archc import registry
from archc.checkpoint.config import Account, Config
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.reading import read_config
from archc.errors import ArchcError
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.emit import flow
from archc.spec.load import loads_spec
from archc.spec.near import nearest
from archc.spec.schema import Spec

_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a configuration says: the spec's text, the spec, its graph, and what became of every key."""

    family: str
    checkpoint: Checkpoint
    config: Mapping[str, Any]
    text: str
    spec: Spec
    graph: Graph
    accounts: tuple[Account, ...]


def import_config(path: str | Path, *, name: str | None = None) -> Imported:
    """The spec of a ``config.json``, or of the folder that holds one.

    Raises:
        ArchcError: the family is not known, or keys ask for what can't be honoured; all of them are named.
        SpecError: the configuration's values make no valid spec.
    """
    place = Path(path)
    return import_data(read_config(place), name=name or _name(place), source=str(place))


def import_data(data: Mapping[str, Any], *, name: str, source: str = "config.json") -> Imported:
    """As ``import_config``, from the mapping itself."""
    model_type = str(data.get("model_type"))
    checkpoint = family_of(model_type, source)
    config = Config(data, defaults=checkpoint.defaults)
    dtype = config.take("dtype", "torch_dtype", default="float32")
    body = checkpoint.spec(config)
    config.finish()
    if config.problems:
        lines = "\n  ".join(config.problems)
        raise ArchcError(f"{source}: {len(config.problems)} keys of {model_type} can't be honoured\n  {lines}")
    text = spec_text({"spec_version": 1, "name": name, "dtype": str(dtype or "float32"), **body})
    spec = loads_spec(text, file=f"<spec of {source}>")
    return Imported(
        family=model_type,
        checkpoint=checkpoint,
        config=data,
        text=text,
        spec=spec,
        graph=expand(spec),
        accounts=tuple(config.accounts.values()),
    )


def family_of(model_type: str, source: str) -> Checkpoint:
    """The family that reads a ``model_type``.

    Raises:
        ArchcError: none does.
    """
    known = registry.names("checkpoint")
    if model_type not in known:
        near = nearest(model_type, known)
        hint = f" Did you mean {near}?" if near else ""
        raise ArchcError(f"{source}: model_type {model_type} is not known.{hint} Known: {', '.join(known)}")
    return registry.load("checkpoint", model_type)()


def spec_text(tree: Mapping[str, Any]) -> str:
    """A readable spec: mappings on one line where they fit, entries of mixers and ffns on lines of their own."""
    return "\n".join(_lines(tree, 0)) + "\n"


def _lines(tree: Mapping[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    indent = "  " * depth
    for key, value in tree.items():
        line = f"{indent}{key}: {flow(value)}"
        is_table = depth == 0 and key in ("mixers", "ffns", "stack")
        if isinstance(value, Mapping) and value and (is_table or len(line) > _WIDTH):
            lines += [f"{indent}{key}:", *_lines(value, depth + 1)]
        else:
            lines.append(line)
    return lines


def _name(place: Path) -> str:
    stem = place.parent.name if place.name == "config.json" else place.stem if place.suffix == ".json" else place.name
    plain = re.sub(r"[^a-z0-9.]+", "-", (stem or place.resolve().name).lower()).strip("-.")
    return plain or "model"
