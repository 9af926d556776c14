"""What to say of keys that are unknown, missing or in the wrong place: this takes a look at the whole spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

from pydantic import ValidationError

from archc import registry
from archc.spec.near import listed, nearest
from archc.spec.nodes import Node, Path, dotted
from archc.spec.patterns import Item, PatternError, closed_length, copies, parse, written
from archc.spec.places import Model, family_at, installed_models, model_at, title
from archc.spec.scalars import shortened
from archc.spec.schedule import TRACKS
from archc.spec.synonyms import CONFIG_ONLY, families_of, here
from archc.spec.wording import expected, found

_HOMES = ("tokenizer", "embedding", "position", "norm", "stack", "head", "cache")
"""Sections whose keys are looked for elsewhere, in the order of the language."""

_STRUCTURE = ("spec", "stack", "mixers", "ffns")
"""Mappings without a kind: what stands there wrongly is moved rather than renamed."""

_FEW = 3
"""So many kinds are named as having a key; what more of them have says little."""

_MANY = 20
"""So many unknown keys of one mapping are looked at for a misspelt one."""

_CONFIG_KEYS = 3
"""So many keys of a Hugging Face config make one."""


class Advice:
    """Hints for one spec; ``unknown_paths`` are all of its unknown keys."""

    def __init__(self, root: Node, unknown_paths: list[Path]) -> None:
        self.root = root
        self._unknown: dict[str, Path] = {}
        for path in unknown_paths:
            self._unknown.setdefault(str(path[-1]), path)
        self._paths = unknown_paths

    def is_config(self) -> bool:
        """Whether the spec looks like a pasted Hugging Face config."""
        if any(path[0] in CONFIG_ONLY for path in self._paths if len(path) == 1):
            return True
        return len({path[-1] for path in self._paths if families_of(str(path[-1]))}) >= _CONFIG_KEYS

    def missing(self, path: Path) -> tuple[str, str] | None:
        """(message, suggestion) for a required key; None where another spelling of it is reported."""
        key, holder = str(path[-1]), path[:-1]
        node = self.root.at(holder)
        if node is not None and any(here(family_at(holder), other, {key: None}) for other in node.mapping):
            return None
        if self.is_misspelt(key, holder):
            return None
        elsewhere = self._unknown.get(key)
        if elsewhere is not None and elsewhere[:-1] != holder and self._home(key, elsewhere[:-1]) == family_at(holder):
            where = f"in {dotted(elsewhere[:-1])}" if elsewhere[:-1] else "at the top"
            mark = self._key_line(elsewhere)
            return f"{key} is required (found {where}, line {mark})", ""
        if key == "head_dim" and node is not None:
            return f"{key} is required; it is not derived{self._quotient(node)}", ""
        return f"{key} is required", ""

    def is_misspelt(self, key: str, holder: Path) -> bool:
        """Whether an unknown key of the same mapping is told to be this one."""
        told = (self.unknown(path) for path in islice((p for p in self._paths if p[:-1] == holder), _MANY))
        return any(worded is not None and worded[1].startswith(f"Did you mean {key}?") for worded in told)

    def kind_missing(self, path: Path, error: Mapping[str, Any]) -> tuple[str, str]:
        """A mapping without its kind; inside a mixer, where it looks like an amendment of the outer default."""
        plain = error["ctx"]["message"], error["ctx"]["suggestion"]
        node = self.root.at(path)
        if len(path) < 2 or node is None:
            return plain
        section = str(path[-1])
        outer = next((o for o in (self.root.at(("stack", section)), self.root.child(section)) if o is not None), None)
        if outer is None or outer is node:
            return plain
        kind = outer.child("kind") or outer
        if not isinstance(kind.value, str):
            return plain
        holder = title(family_at(path[:-1]))
        dropped = [key for key in outer.mapping if key != "kind" and key not in node.mapping]
        nothing = f"nothing ({', '.join(dropped)})" if dropped else "nothing"
        line = (
            f"line {outer.mark.line}" if outer.mark.file == node.mark.file else f"{outer.mark.file}:{outer.mark.line}"
        )
        message = f"kind is required: {holder}'s {section} is used whole, {nothing} comes from {line}"
        keys = ", ".join(f"{key}: {found(item)}" for key, item in node.mapping.items())
        return message, f"Did you mean {{{', '.join(filter(None, (f'kind: {kind.value}', shortened(keys))))}}}?"

    def unknown(self, path: Path) -> tuple[str, str] | None:
        """(message, suggestion) for a key that its mapping does not have."""
        key, holder = str(path[-1]), path[:-1]
        family = family_at(holder)
        if (comma := self._comma(path) or self._thousands(path)) is not None:
            return comma
        fields: dict[str, Any] = dict(getattr(model_at(self.root, holder), "model_fields", {}))
        if ours := here(family, key, fields):
            if key.endswith(f"_{ours}"):
                return "unknown key", f"Did you mean {ours}?"
            where = f"In {title(family)}" if family in ("mixer", "ffn") else "Here"
            home = self._home(key, holder)
            return "unknown key", f"{where} this is {ours}" + (f" ({key} is a key of {home})" if home else "")
        if around := self._around(key, holder):
            return "unknown key", around
        home = self._home(key, holder) or self._other_kinds(key, holder)
        near = nearest(key, fields, cutoff=0.55)
        if home and family in _STRUCTURE:
            where = "at the top" if home == title("spec") else f"in {home}"
            return f"belongs {where}{self._misfit(home, path)}", ""
        if elsewhere := families_of(key):
            other = elsewhere[0][0]
            theirs = [ours for family, ours in elsewhere if family == other]
            return "unknown key", f"In {title(other)} this is {listed(theirs, 'or')}"
        if near:
            return "unknown key", f"Did you mean {near}?" + (f" ({key} is a key of {home})" if home else "")
        if home:
            return "unknown key", f"{key} is a key of {home}"
        return "unknown key", f"Known are {shortened(', '.join(fields), limit=200)}" if fields else "It takes no keys"

    def follows_comma(self, path: Path) -> bool:
        """Whether the pattern at a path was cut by a comma inside braces, which is reported at the key behind it."""
        return path in self._cut

    @cached_property
    def _cut(self) -> frozenset[Path]:
        return frozenset((path[0], track) for path in self._paths if (track := self._cut_pattern(path)))

    def _home(self, key: str, holder: Path) -> str:
        """The section that has a key, if it isn't the one it stands in."""
        own = family_at(holder)
        for section in _HOMES:
            if section == own:
                continue
            model = model_at(self.root, (section,))
            if model is not None and key in model.model_fields:
                return section
        if own != "spec" and key in self._spec_keys:
            return title("spec")
        for family in ("mixer", "ffn"):
            section = f"{family}s"
            entries = getattr(self.root.child(section), "mapping", {})
            models = [model_at(self.root, (section, name)) for name in list(entries)[:20]]
            if own in ("spec", "stack", "mixers", "ffns") and any(
                model is not None and key in model.model_fields for model in models
            ):
                return title(family)
        return next(
            (section for section in _HOMES if section not in (own, "stack") and self._is_key_of(key, section)), ""
        )

    def _around(self, key: str, holder: Path) -> str:
        """Where a key belongs that stands one level too deep, or not deep enough."""
        outer = model_at(self.root, holder[:-1]) if len(holder) > 2 else None
        if outer is not None and key in outer.model_fields:
            return f"{key} belongs one level up"
        node = self.root.at(holder)
        if node is None or len(holder) < 2:
            return ""
        inner = ((step, model_at(self.root, (*holder, step))) for step in node.mapping)
        return next((f"{key} belongs in {step}" for step, model in inner if model and key in model.model_fields), "")

    def _other_kinds(self, key: str, holder: Path) -> str:
        """The other kinds of a family that have a key, if that is few."""
        family = family_at(holder)
        if family in _STRUCTURE or family not in registry.FAMILIES:
            return ""
        kinds = [model.kind_name for model in installed_models(family) if key in model.model_fields]
        return listed(kinds) if len(kinds) <= _FEW else ""

    def _is_key_of(self, key: str, section: str) -> bool:
        return any(key in model.model_fields for model in installed_models(section))

    @cached_property
    def _spec_keys(self) -> frozenset[str]:
        model = model_at(self.root, ())
        return frozenset(model.model_fields if model is not None else ()) - {
            "name",
            "description",
            "mixers",
            "ffns",
            "stack",
            "mtp",
        }

    def _misfit(self, home: str, path: Path) -> str:
        """What else is wrong with a value that stands in the wrong section."""
        model, node = model_at(self.root, (home,)), self.root.at(path)
        if model is None or node is None:
            return ""
        for error in _errors_of(model, str(path[-1]), node):
            if should := expected(error):
                return f"; and should be {should} (found {found(node, number=error['type'] in ('int_type', 'float_type'))})"
        return ""

    def _quotient(self, node: Node) -> str:
        heads = node.child("num_heads") or node.child("num_attention_heads")
        width = self.root.at(("embedding", "hidden_size")) or self.root.child("hidden_size")
        if heads is None or width is None:
            return ""
        top, bottom = width.value, heads.value
        if not (isinstance(top, int) and isinstance(bottom, int)) or bottom < 1 or top < 1 or top % bottom:
            return ""
        return f" ({top} / {bottom} would be {top // bottom})"

    def _key_line(self, path: Path) -> int:
        parent = self.root.at(path[:-1])
        return parent.key_mark(str(path[-1])).line if parent is not None else 0

    def _cut_pattern(self, path: Path) -> str:
        """The track before an unknown key without a value, where that key is a name: ``{mixer: kda*3, mla}``."""
        node = self.root.at(path)
        if len(path) != 2 or family_at(path[:-1]) != "stack" or node is None or node.value is not None:
            return ""
        key = str(path[-1])
        family = next((f for f in ("mixer", "ffn") if key in getattr(self.root.child(f"{f}s"), "mapping", {})), "")
        stack = self.root.mapping[str(path[0])]
        # By place: a child's keys stand in the order of its parent's.
        here = stack.key_mark(key)
        before = {
            name: mark for name in TRACKS if (mark := stack.keys.get(name, here)) < here and mark.file == here.file
        }
        return max(before, key=lambda name: before[name]) if family and before else ""

    def _thousands(self, path: Path) -> tuple[str, str] | None:
        """What to say of the second half of ``{vocab_size: 128,256}``."""
        node, holder = self.root.at(path), self.root.at(path[:-1])
        key = str(path[-1])
        if node is None or holder is None or node.value is not None or not (key.isdecimal() and len(key) == 3):
            return None
        steps = list(holder.mapping)
        before = next((step for step, after in pairwise(steps) if after == key), "")
        first = holder.child(before)
        if first is None or not isinstance(first.value, int):
            return None
        return (
            "unknown key without a value. A comma ends a value inside { }",
            f"Did you mean {before}: {first.value}{key}?",
        )

    def _comma(self, path: Path) -> tuple[str, str] | None:
        track = self._cut_pattern(path)
        if not track:
            return None
        stack = self.root.mapping[str(path[0])]
        key = str(path[-1])
        family = "a mixer" if key in getattr(self.root.child("mixers"), "mapping", {}) else "an ffn"
        message = f"unknown key without a value. {key} is {family}, and a comma ends a value inside {{ }}"
        first = stack.mapping[track].value
        pattern = (
            _whole(f"{first} {key}", getattr(stack.child("num_layers"), "value", None))
            if isinstance(first, str)
            else ""
        )
        return message, f"Did you mean {track}: {pattern}?" if pattern else ""


def _whole(text: str, num_layers: Any) -> str:
    """The pattern that was cut, repeated where that fills the layers."""
    try:
        items = parse(text)
    except PatternError:
        return ""
    repeated = (Item(items, None),)
    closed = all(item.count is not None for item in items)
    if closed and isinstance(num_layers, int) and closed_length(items) != num_layers and copies(repeated, num_layers):
        return written(repeated)
    return written(items)


def _errors_of(model: Model, key: str, node: Node) -> Iterator[Mapping[str, Any]]:
    try:
        model.model_validate({key: node.plain()})
    except ValidationError as error:
        yield from (found for found in error.errors(include_url=False) if found["loc"][:1] == (key,))
