"""Which mixer and which ffn each layer of a stack has, and every mistake in saying so.

Works on plain data as well as on a valid stack, so that patterns are judged in the run that finds a wrong key elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError

from archc.spec.faults import fault
from archc.spec.near import listed, nearest
from archc.spec.nodes import Path, is_list, is_mapping
from archc.spec.pattern_help import layer_numbers, misfit, ratio
from archc.spec.patterns import MAX_LAYERS, NAME, NONE, Items, PatternError, copies, expand, joined, parse
from archc.spec.scalars import shortened

TRACKS = ("mixer", "cross", "ffn", "layers")
Found = tuple[Path, PydanticCustomError]


class LayerPlan(NamedTuple):
    """The names of a layer's sub-layers; None where it has none."""

    mixer: str | None
    ffn: str | None
    cross: str | None = None


class Names:
    """The names a pattern may use, in the order the spec gives them."""

    __slots__ = ("both", "ffns", "mixers")

    def __init__(self, mixers: Iterable[str], ffns: Iterable[str]) -> None:
        self.mixers = dict.fromkeys(mixers)
        self.ffns = dict.fromkeys(ffns)
        self.both = {**self.mixers, **self.ffns}

    def of(self, track: str) -> Collection[str]:
        """The names that a track places."""
        return self.mixers if track in ("mixer", "cross") else self.ffns if track == "ffn" else self.both


def check_names(names: Names) -> Iterator[Found]:
    """Names that no pattern could place."""
    for section, members in (("mixers", names.mixers), ("ffns", names.ffns)):
        for name in members:
            if name == NONE:
                yield (section, name), fault("none stands for no sub-layer and can't be a name", code="name")
            elif NAME.fullmatch(name) is None:
                hint = "Names are lower-case letters, digits and _, a letter first"
                yield (
                    (section, name),
                    fault(f"can't be a name in a pattern (found {shortened(name)})", hint, code="name"),
                )
    for name in names.ffns:
        if name in names.mixers:
            hint = "Mixers and ffns share one name space"
            yield ("ffns", name), fault(f"{name} is a mixer already", hint, code="name")


def check_stack(section: str, stack: Mapping[str, Any], names: Names) -> Iterator[Found]:
    """Everything wrong with the patterns of one stack."""
    num_layers = stack.get("num_layers")
    if not isinstance(num_layers, int) or isinstance(num_layers, bool) or not 1 <= num_layers <= MAX_LAYERS:
        num_layers = None
    written = {track: stack[track] for track in TRACKS if stack.get(track) is not None}
    if "layers" in written and len(written) > 1:
        others = listed([track for track in TRACKS if track in written and track != "layers"])
        yield (section, "layers"), fault(f"layers is both tracks in one: it excludes {others}", code="pattern")
    elif "layers" not in written:
        for track in ("mixer", "ffn"):
            if track not in written:
                yield (
                    (section,),
                    fault(f"{track} is required", "Or layers, for both tracks in one", code="track_missing"),
                )
    valid: dict[str, Items] = {}
    for track, value in written.items():
        try:
            valid[track] = _checked(track, value, names, num_layers)
        except PatternError as error:
            yield (section, track), fault(error.message, error.suggestion, code="pattern")
    if num_layers is not None and len(valid) == len(written):
        yield from _check_empty(section, valid, num_layers)


def plans(stack: Mapping[str, Any], names: Names) -> tuple[LayerPlan, ...]:
    """The layers of a stack that has no mistakes."""
    num_layers: int = stack["num_layers"]
    text = joined(stack.get("layers"))
    if text is not None:
        return tuple(_half_layer(entry, names) for entry in expand(parse(text), num_layers))
    written = [stack.get(track) or NONE for track in ("mixer", "ffn", "cross")]
    tracks = [expand(parse(joined(track) or NONE), num_layers) for track in written]
    return tuple(LayerPlan(*(None if name == NONE else name for name in names)) for names in zip(*tracks, strict=True))


def placed(stack: Mapping[str, Any]) -> set[str]:
    """Every name that a stack's patterns use; nothing for a pattern that can't be read."""
    found: set[str] = set()
    for track in TRACKS:
        text = joined(stack.get(track))
        if text is not None:
            found |= _placed_by(text)
    return found


@lru_cache(maxsize=256)
def _placed_by(text: str) -> frozenset[str]:
    try:
        items = parse(text)
    except PatternError:
        return frozenset()
    return frozenset(name for item in items for entry in item.names() for name in entry.split("+"))


def _half_layer(entry: str, names: Names) -> LayerPlan:
    first, _, second = entry.partition("+")
    if second:
        return LayerPlan(first, second)
    return LayerPlan(first, None) if first in names.mixers else LayerPlan(None, first)


def _checked(track: str, value: Any, names: Names, num_layers: int | None) -> Items:
    """The items of a track.

    Raises:
        PatternError: no pattern, an unknown name, or the wrong length.
    """
    takes = _takes(track)
    text = joined(value)
    if text is None:
        raise _no_pattern(takes, value, names.of(track), num_layers)
    try:
        items = parse(text)
    except PatternError as error:
        word = error.word
        if not word or not word[0].isalnum():
            raise
        hint = ratio(word, tuple(names.of(track)), num_layers) or _pattern_hint(word)
        raise PatternError(f"a pattern names {takes} (found {word})", hint) from None
    for entry in dict.fromkeys(name for item in items for name in item.names()):
        _check_entry(track, entry, names)
    if num_layers is not None and copies(items, num_layers) is None:
        raise misfit(items, num_layers)
    return items


def _takes(track: str) -> str:
    return {"mixer": "mixers", "cross": "mixers", "ffn": "ffns"}.get(track, "mixers, ffns or mixer+ffn")


def _no_pattern(takes: str, value: Any, known: Collection[str], num_layers: int | None) -> PatternError:
    if is_mapping(value):
        keys = shortened(", ".join(map(str, value)))
        if value and all(isinstance(item, list) for item in value.values()):
            return PatternError(
                f"takes a pattern, not layer numbers (found {keys})", layer_numbers(value, tuple(known), num_layers)
            )
        return PatternError(f"takes a pattern, not a mapping (found {keys or 'an empty one'})")
    if is_list(value):
        entry = next((entry for entry in value if not isinstance(entry, str)), "nothing")
        return PatternError(f"a pattern names {takes} (found {_entry(entry)})")
    return PatternError(f"a pattern names {takes} (found {_entry(value)})")


def _entry(value: Any) -> str:
    return "a list" if isinstance(value, list) else "a mapping" if isinstance(value, Mapping) else shortened(str(value))


def _pattern_hint(word: str) -> str:
    lower = word.lower()
    return "Names start with a lower-case letter" if lower != word and NAME.fullmatch(lower) else ""


def _check_entry(track: str, entry: str, names: Names) -> None:
    first, plus, second = entry.partition("+")
    if plus:
        if track != "layers":
            raise PatternError(
                f"mixer+ffn stands in layers (found {entry})", f"A {track} pattern names {_takes(track)} alone"
            )
        if first in names.ffns and second in names.mixers:
            raise PatternError(f"the mixer comes first (found {entry})", f"Did you mean {second}+{first}?")
        _check_name("mixer", first, names)
        _check_name("ffn", second, names)
    elif entry == NONE:
        if track == "layers":
            raise PatternError("a layer with no sub-layer at all (found none)")
    else:
        _check_name(track, entry, names)


def _check_name(track: str, name: str, names: Names) -> None:
    known = names.of(track)
    if name in known:
        return
    other = "ffn" if name in names.ffns else "mixer" if name in names.mixers else ""
    if other:
        raise PatternError(f"{name} is {'an ffn' if other == 'ffn' else 'a mixer'}; this pattern names {_takes(track)}")
    near = nearest(name, known)
    hint = f"Did you mean {near}?" if near else f"Known are {shortened(', '.join(known))}" if known else ""
    what = {"mixer": "mixer", "cross": "mixer", "ffn": "ffn"}.get(track, "mixer or ffn")
    raise PatternError(f"no {what} is called {shortened(name)}", hint)


def _check_empty(section: str, valid: Mapping[str, Items], num_layers: int) -> Iterator[Found]:
    if "mixer" not in valid or "ffn" not in valid:
        return
    if not all(any(NONE in item.names() for item in valid[track]) for track in ("mixer", "ffn")):
        return
    pairs = zip(expand(valid["mixer"], num_layers), expand(valid["ffn"], num_layers), strict=True)
    empty = [number for number, pair in enumerate(pairs) if pair == (NONE, NONE)]
    if empty:
        more = f" and {len(empty) - 1:,} more" if len(empty) > 1 else ""
        yield (
            (section, "ffn"),
            fault(f"layer {empty[0]}{more} (counted from 0) has neither mixer nor ffn", code="pattern"),
        )
