"""A configuration becomes a spec: the family reads it, every key is accounted for, and the text is read back and expanded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archc import registry
from archc.checkpoint.config import Account, Config, ConfigError
from archc.checkpoint.family import Checkpoint
from archc.checkpoint.reading import count_ids, read_config
from archc.errors import ArchcError
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.emit import flow
from archc.spec.load import loads_spec
from archc.spec.near import nearest
from archc.spec.schema import Spec

_WIDTH = 120
_MOST_LAYERS = 10_000
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
_LIKE_THE_ENCODER = "num_decoder_layers"
"""A depth that may be null."""
_NO_DEPTH = f"is no number of layers from 1 to {_MOST_LAYERS:,}"


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
    untied: bool = False
    """Whether the head is read as not tied, whatever the configuration says."""

    def noting(self, key: str, note: str) -> Imported:
        """With a further word on what became of a key; a key that nobody looked at is added."""
        known = [account for account in self.accounts if account.key == key]
        first = replace(known[0], note=note) if known else Account(key, None, "default", note)
        accounts = (*(first if account.key == key else account for account in self.accounts),)
        return replace(self, accounts=accounts if known else (*accounts, first))


def import_config(
    path: str | Path, *, name: str | None = None, untied: bool = False, dtype: str | None = None
) -> Imported:
    """The spec of a ``config.json``, or of the folder that holds one.

    ``untied`` overrules what it says of the head; ``dtype`` is that of the weights where it says none. A
    ``tokenizer.json`` in the folder says how many rows of the table stand for something.

    Raises:
        ArchcError: the family is not known, or keys ask for what can't be honoured; all of them are named.
        SpecError: the configuration's values make no valid spec.
    """
    place = Path(path)
    ids = count_ids(place) if place.is_dir() else None
    return import_data(
        read_config(place), name=name or name_of(place), source=str(place), untied=untied, dtype=dtype, ids=ids
    )


def import_data(
    data: Mapping[str, Any],
    *,
    name: str,
    source: str = "config.json",
    untied: bool = False,
    dtype: str | None = None,
    ids: int | None = None,
) -> Imported:
    """As ``import_config``, from the mapping itself; ``ids`` of the rows stand for something."""
    model_type = str(data.get("model_type"))
    checkpoint = family_of(model_type, source)
    config = Config(checkpoint.untied(data) if untied else data, defaults=checkpoint.defaults)
    stated = checkpoint.dtype(config)
    account = config.accounts.get("dtype")
    if dtype is not None and account is not None and account.verdict == "default":
        stated = dtype
        config.accounts["dtype"] = Account("dtype", dtype, "default", "of the tensors; the file says nothing")
    body = _body(checkpoint, config, source)
    if config.problems:
        lines = "\n  ".join(config.problems)
        count = len(config.problems)
        message = f"{source}: {count} key{'s' if count > 1 else ''} of {model_type} can't be honoured\n  {lines}"
        raise ConfigError(message, model_type, tuple(config.accounts.values()))
    if ids is not None:
        _count_rows(body, ids, config)
    text = spec_text({"spec_version": 1, "name": name, "dtype": str(stated), **body})
    spec = loads_spec(text, file=f"<spec of {source}>")
    return Imported(
        family=model_type,
        checkpoint=checkpoint,
        config=data,
        text=text,
        spec=spec,
        graph=expand(spec),
        accounts=tuple(config.accounts.values()),
        untied=untied,
    )


def _body(checkpoint: Checkpoint, config: Config, source: str) -> dict[str, Any]:
    """The family's reading. What is missing or no number makes arithmetic fail, which is no defect of the family."""
    for key, value in config.data.items():
        if key in _DEPTHS and not _is_depth(value) and not (key == _LIKE_THE_ENCODER and value is None):
            config.refuse(key, _NO_DEPTH)
        elif isinstance(value, Mapping):
            deep = [inner for inner in _DEPTHS if inner in value and not _is_depth(value[inner])]
            config.problems += [f"{key}.{inner}: {value[inner]!r} {_NO_DEPTH}" for inner in deep]
    if config.problems:
        return {}
    try:
        body = checkpoint.spec(config)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        if not config.problems:
            raise ArchcError(
                f"{source}: its values can't be read as {config.data.get('model_type')}: {error}"
            ) from error
        return {}
    config.finish()
    return body


def _count_rows(body: dict[str, Any], ids: int, config: Config) -> None:
    """Tell the ids of the tokenizer from the rows of the table, where there are more rows."""
    tokenizer, embedding = body["tokenizer"], body["embedding"]
    if not isinstance(tokenizer, dict):
        # A model of pictures has no ids, whatever lies beside it.
        return
    rows = embedding.get("num_embeddings", tokenizer["vocab_size"])
    special = [tokenizer[key] for key in tokenizer if key.endswith("_token_id")]
    named = [one for entry in special for one in (entry if isinstance(entry, list) else [entry])]
    if not isinstance(rows, int) or ids >= rows or any(not isinstance(one, int) or one >= ids for one in named):
        return
    tokenizer["vocab_size"], embedding["num_embeddings"] = ids, rows
    for key, account in config.accounts.items():
        if key.rpartition(".")[2] == "vocab_size":
            config.accounts[key] = replace(account, note=f"of these rows, {ids:,} are ids of tokenizer.json")


def _is_depth(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_LAYERS


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
        is_table = depth == 0 and key in ("mixers", "ffns", "stack", "encoder", "decoder")
        if isinstance(value, Mapping) and value and (is_table or len(line) > _WIDTH):
            lines += [f"{indent}{key}:", *_lines(value, depth + 1)]
        else:
            lines.append(line)
    return lines


def name_of(place: Path) -> str:
    """A name for the spec of a file or folder: that of the folder, unless the file has one of its own."""
    stem = place.parent.name if place.name == "config.json" else place.stem if place.suffix == ".json" else place.name
    plain = re.sub(r"[^a-z0-9.]+", "-", (stem or place.resolve().name).lower()).strip("-.")
    return plain or "model"
