"""What changed between a lockfile and a graph, in words: layers, ops, attributes, weights, states and how values flow."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from archc.errors import ArchcError
from archc.graph.lockfile import FORMAT

MAX_BYTES = 64 << 20
MAX_NODES = 200_000
"""Nodes of one layer: a file could name a block that holds itself, or two of one that holds two of one."""
MAX_DEPTH = 32
_SHOWN = 60
_HEADER = ("name", "dtype", "vocab_size", "max_position_embeddings")

Lock = dict[str, Any]


def read_lock(path: str) -> Lock:
    """The lockfile at a path.

    Raises:
        ArchcError: it is missing, too large, or no lockfile of a format that this archc reads.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ArchcError(f"{path}: is no file")
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ArchcError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise ArchcError(f"{path}: larger than {MAX_BYTES:,} bytes, which no lockfile is")
    try:
        lock: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchcError(f"{path}: not JSON: {error}") from None
    if not isinstance(lock, dict) or "format" not in lock:
        raise ArchcError(f"{path}: is no lockfile of archc; archc show SPEC --lock prints one")
    if lock["format"] != FORMAT:
        raise ArchcError(f"{path}: a lockfile of format {_shown(lock['format'])}; this archc reads {FORMAT}")
    return cast("Lock", lock)


@dataclass(slots=True)
class Difference:
    """``changes`` are of the graph; ``notes`` are of the packages that made it, which change nothing by themselves."""

    changes: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


def difference(old: Lock, new: Lock, *, file: str = "the lockfile") -> Difference:
    """What ``new`` has otherwise than ``old``, a line each; equal runs of layers share their lines.

    Raises:
        ArchcError: ``old`` is no lockfile.
    """
    try:
        return _difference(old, new)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ArchcError(f"{file}: is no lockfile of archc, or damaged ({type(error).__name__}: {error})") from None


def _difference(old: Lock, new: Lock) -> Difference:
    found = Difference()
    for key in _HEADER:
        if old[key] != new[key]:
            found.changes.append(_was(key, old[key], new[key]))
    _plugins(old, new, found)
    found.changes += _layers(old, new)
    found.changes += [f"model: {line}" for line in _bodies(_root(old), _root(new))]
    if (old.get("mtp") is None) != (new.get("mtp") is None):
        found.changes.append(f"mtp: the extra prediction layers are {'new' if old.get('mtp') is None else 'gone'}")
    elif new.get("mtp") is not None:
        found.changes += [f"mtp: {line}" for line in _difference(old["mtp"], new["mtp"]).changes]
    if not found.changes and _graph(old) != _graph(new):
        found.changes.append("model: the same ops, weights and states, but values flow between them in another way")
    return found


def _graph(lock: Lock) -> Lock:
    """All but who made it."""
    mtp = None if lock.get("mtp") is None else _graph(lock["mtp"])
    return {**{key: value for key, value in lock.items() if key not in ("archc", "plugins")}, "mtp": mtp}


def _plugins(old: Lock, new: Lock, found: Difference) -> None:
    if old["archc"] != new["archc"]:
        found.notes.append(_was("archc", old["archc"], new["archc"]))
    for kind, before, after in _pairs(old["plugins"], new["plugins"]):
        if before is None or after is None:
            found.changes.append(f"kind {kind.replace(':', '.')} is {'new' if before is None else 'gone'}")
        elif before != after:
            found.notes.append(_was(f"package of {kind.replace(':', '.')}", " ".join(before), " ".join(after)))


def _layers(old: Lock, new: Lock) -> Iterator[str]:
    before, after = old["layers"], new["layers"]
    if len(before) != len(after):
        yield _was("number of layers", len(before), len(after))
    runs: dict[tuple[str, str], list[int]] = {}
    for index, pair in enumerate(zip(before, after, strict=False)):
        if pair[0] != pair[1]:
            runs.setdefault(pair, []).append(index)
    lines: dict[str, list[int]] = {}
    for (left, right), indices in runs.items():
        for line in _layer(old, new, old["blocks"][left], new["blocks"][right]):
            lines.setdefault(line, []).extend(indices)
    for line, indices in lines.items():
        yield f"{'layer' if len(indices) == 1 else 'layers'} {_ranges(sorted(indices))}: {line}"


def _layer(old: Lock, new: Lock, before: Any, after: Any) -> Iterator[str]:
    if before["label"] != after["label"]:
        yield _was("", before["label"], after["label"])
    else:
        yield from _bodies(_Flat(old).body(before), _Flat(new).body(after))


def _root(lock: Lock) -> dict[str, Any]:
    return _Flat(lock).body(lock["model"], is_root=True)


class _Flat:
    """A block with all inside it as path -> what stands there; a value is named by the path that makes it."""

    def __init__(self, lock: Lock) -> None:
        self.blocks: dict[str, Any] = lock["blocks"]
        self.layers = len(lock["layers"])
        self.nodes: dict[str, Any] = {}

    def body(self, block: Any, *, is_root: bool = False) -> dict[str, Any]:
        """path -> op, attrs, params, states and where its inputs come from."""
        inputs = [f"input {number}" for number in range(len(block["in"]))]
        outputs = self._walk(block, "", inputs, is_root, 0)
        return {**self.nodes, "": {"op": "result", "from": outputs}}

    def _walk(self, block: Any, prefix: str, given: list[str], is_root: bool, depth: int) -> list[str]:
        if depth > MAX_DEPTH:
            raise ValueError(f"blocks more than {MAX_DEPTH} deep")
        names: dict[int, str] = dict(zip((number for number, _ in block["in"]), given, strict=True))
        counts: dict[str, int] = {}
        for item in block["items"]:
            came = [names[number] for number in item["in"]]
            if "scope" in item:
                path = f"{prefix}{item['scope']}"
                if is_root and path.startswith("layers."):
                    # By its number from the end, so that a stack that grew is not read from elsewhere.
                    back = self.layers - int(path.removeprefix("layers."))
                    what = "the last layer" if back == 1 else f"the layer {back} before the end"
                    outs = [f"{what} output {number}" if number else what for number in range(len(item["out"]))]
                else:
                    outs = self._walk(self.blocks[item["block"]], f"{path}.", came, False, depth + 1)
                names.update(zip(item["out"], outs, strict=True))
                continue
            op, name = item["op"], item["name"]
            if not name:
                counts[op] = counts.get(op, 0) + 1
                name = f"{op} {counts[op]}"
            path = f"{prefix}{name}"
            if len(self.nodes) >= MAX_NODES:
                raise ValueError(f"more than {MAX_NODES} nodes in one layer")
            self.nodes[path] = {**item, "from": came, "types": [kind for _, kind in item["out"]]}
            for number, (value, _) in enumerate(item["out"]):
                names[value] = path if number == 0 else f"{path} output {number}"
        return [names[number] for number in block["out"]]


def _bodies(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for path, before, after in _pairs(old, new):
        here = path or "the result"
        if before is None or after is None:
            there: Any = after if before is None else before
            yield f"{here} ({there['op']}) is {'new' if before is None else 'gone'}"
        elif before["op"] != after["op"]:
            yield _was(here, before["op"], after["op"])
        else:
            yield from _items(before, after, here)


def _items(before: Any, after: Any, here: str) -> Iterator[str]:
    said = False
    for part, what in (("attrs", ""), ("params", "weight "), ("states", "state ")):
        for name, one, other in _pairs(before.get(part, {}), after.get(part, {})):
            if one == other:
                continue
            said = True
            if part == "attrs":
                yield _was(f"{here}: {name}", one, other)
            elif one is None or other is None:
                there: Any = other if one is None else one
                shape = _shown(there["shape" if part == "params" else "used"])
                yield f"{here}: {what}{name} {shape} is {'new' if one is None else 'gone'}"
            else:
                for key, left, right in _pairs(one, other):
                    if left != right:
                        yield _was(f"{here}: {what}{name}: {key}", left, right)
    if before["from"] != after["from"]:
        yield f"{here} reads {', '.join(after['from'])}, before {', '.join(before['from'])}"
    elif not said and before.get("types") != after.get("types"):
        yield f"{here} gives {', '.join(after['types'])}, before {', '.join(before['types'])}"


def _pairs(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(key, old value, new value) in the new one's order, what is gone at the end."""
    for key in (*new, *(key for key in old if key not in new)):
        yield key, old.get(key), new.get(key)


def _was(what: str, before: Any, after: Any) -> str:
    old, new = (value if isinstance(value, str) else json.dumps(value) for value in (before, after))
    if len(old) > _SHOWN and len(new) > _SHOWN:
        # What they have in common would fill the line, and hide where they part.
        alike = next((i for i, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), 0)
        start = max(alike - _SHOWN // 2, 0)
        old, new = ("…" * (start > 0) + text[start:] for text in (old, new))
    return f"{what} is {_shown(new)}, was {_shown(old)}".lstrip()


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _ranges(numbers: list[int]) -> str:
    """``0-2,4`` of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
