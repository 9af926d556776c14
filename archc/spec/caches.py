"""Cache policies that don't fit the mixers they rule; works on plain data as well as on valid kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from archc.spec.faults import fault
from archc.spec.kind import Kind
from archc.spec.nodes import Path, is_mapping
from archc.spec.schedule import Found, placed
from archc.spec.slots import Slot

KEY = "policy"
"""What a cache calls its kind."""

_MIXER, _POLICY = Slot("mixer"), Slot("cache", default_kind="full", key=KEY)

Made = tuple[type[Kind], Kind | None]
"""The class of a kind, and the kind itself where its keys are valid."""


def check_caches(spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]]) -> Iterator[Found]:
    """A mistake for each policy that rules mixers whose rows it can't hold; the policy that stands nearest rules.

    What a policy or a mixer says of itself is asked through the attributes of their families (``archc.families``).
    """
    mixers = spec.get("mixers")
    if not is_mapping(mixers):
        return
    policies = {path: made for path, value in _stated(spec, stacks, mixers) if (made := kind_of(_POLICY, value))}
    policies = {path: made for path, made in policies.items() if getattr(made[0], "rules_rows", False)}
    if not policies:
        return
    known = {name: made for name, value in mixers.items() if (made := kind_of(_MIXER, value))}
    for path, policy in policies.items():
        misfits = {name: why for name, mixer in known.items() if (why := _objection(policy, mixer))}
        ruled = _ruled(path, spec, stacks, mixers)
        reasons = [f"{name}, {why}" for name, why in misfits.items() if name in ruled]
        if reasons:
            others = [f"mixers.{other}.cache" for other in known if other not in misfits]
            hint = f"Put it on the mixers that do: {', '.join(others)}" if others else ""
            message = f"{policy[0].kind_name} does not fit {', nor '.join(reasons)}"
            yield (*path, KEY), fault(message, hint, code="cache_policy")


def _stated(
    spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]], mixers: Mapping[str, Any]
) -> Iterator[tuple[Path, Any]]:
    """Every cache that is stated, with its path."""
    holders = {(): spec, **{(name,): stack for name, stack in stacks.items()}}
    for path, holder in holders.items():
        if holder.get("cache") is not None:
            yield (*path, "cache"), holder["cache"]
    for name, mixer in mixers.items():
        if (own := _own_cache(mixer)) is not None:
            yield ("mixers", name, "cache"), own


def _ruled(
    path: Path, spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]], mixers: Mapping[str, Any]
) -> set[str]:
    """The mixers that the cache at a path rules: its own, or those that are placed and have none nearer."""
    if path[0] == "mixers":
        return {str(path[1])}
    names: set[str] = set()
    for section, stack in stacks.items():
        if path[0] == section or (path == ("cache",) and stack.get("cache") is None):
            # A stack whose patterns can't be read may place any mixer.
            names |= placed(stack) & set(mixers) or set(mixers)
    return {name for name in names if _own_cache(mixers[name]) is None}


def _own_cache(mixer: Any) -> Any:
    return mixer.get("cache") if is_mapping(mixer) else getattr(mixer, "cache", None)


def kind_of(slot: Slot, value: Any) -> Made | None:
    """What stands in a slot, as far as it can be told; None where not even its class can."""
    if isinstance(value, Kind):
        return type(value), value
    try:
        cls = slot.load(slot.name_in(value))
    except PydanticCustomError:
        return None
    try:
        return cls, slot.validate(value)
    except (PydanticCustomError, ValidationError):
        return cls, None


def _objection(policy: Made, mixer: Made) -> str:
    if not getattr(mixer[0], "keeps_rows", True):
        return "which keeps a state and no row a token"
    (_, rule), (_, held) = policy, mixer
    ask = getattr(rule, "objection", None)
    return ask(held) if ask is not None and held is not None else ""
