"""What a value should be and what was found, in the words of the messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from archc.spec.near import listed, nearest
from archc.spec.nodes import Node
from archc.spec.scalars import plain_number, shortened

_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "mapping_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("above {}", "gt"),
    "greater_than_equal": ("at least {}", "ge"),
    "less_than": ("below {}", "lt"),
    "less_than_equal": ("at most {}", "le"),
    "multiple_of": ("a multiple of {}", "multiple_of"),
}
_FOUND_HERE = ("slot", "kind_name", "scale", "pattern")
"""Mistakes of validators that can't say what they found: they don't know how it was written."""
_HINTS = {"qk_norm": "Qwen3 and Gemma 3: head; OLMo 2: width"}
"""What is needed beside the list of choices, by key."""


def expected(error: Mapping[str, Any]) -> str:
    """What the value should be (``an integer``); empty for an error that is worded elsewhere."""
    kind: str = error["type"]
    context: dict[str, Any] = error.get("ctx") or {}
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _BOUNDS:
        form, key = _BOUNDS[kind]
        return form.format(_bound(context[key]))
    if kind == "literal_error":
        return listed(_choices(context["expected"]), "or")
    if kind in ("too_short", "too_long"):
        bound, key = ("at least", "min_length") if kind == "too_short" else ("at most", "max_length")
        return f"{bound} {context[key]} {'entry' if context[key] == 1 else 'entries'} long"
    if kind == "string_too_short":
        return "some text"
    return ""


def _bound(value: float) -> float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def code(kind: str) -> str:
    """The stable code of a pydantic error type."""
    codes = {"missing": "missing", "extra_forbidden": "unknown_key", "literal_error": "choice"}
    return codes.get(kind) or ("type" if kind in _TYPES else "range" if kind in _BOUNDS else kind)


def found(node: Node, *, number: bool = False) -> str:
    """A value as its file wrote it; text in quotes where it stood in quotes, or where a number is due."""
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"'{shortened(value)}'" if number or node.quoted else shortened(value)
    if isinstance(value, bool | int | float):
        return shortened(node.text)
    what = "mapping" if isinstance(value, Mapping) else "list"
    return f"a {what}" if value else f"an empty {what}"


def wrong(error: Mapping[str, Any], node: Node, key: str) -> tuple[str, str]:
    """(message, suggestion) for a value of the wrong type, out of bounds, or none of the choices."""
    should = expected(error)
    if not should:
        return _other(error, node)
    is_number = error["type"] in ("int_type", "int_from_float", "float_type")
    if error["type"] == "literal_error" and isinstance(node.value, str):
        near = nearest(node.value, _choices(error["ctx"]["expected"]))
        if near:
            return f"unknown (found {found(node)})", f"Did you mean {near}?"
    return f"should be {should} (found {found(node, number=is_number)})", _suggestion(error, node, key)


def _suggestion(error: Mapping[str, Any], node: Node, key: str) -> str:
    if error["type"] in ("int_type", "int_from_float", "float_type"):
        value = node.value
        if isinstance(value, float) and value.is_integer():
            return f"Did you mean {int(value)}?"
        number = plain_number(value) if isinstance(value, str) else ""
        if number and not (error["type"] != "float_type" and "." in number):
            return f"Did you mean {number}?"
    return _HINTS.get(key, "") if error["type"] == "literal_error" else ""


def _other(error: Mapping[str, Any], node: Node) -> tuple[str, str]:
    context: dict[str, Any] = error.get("ctx") or {}
    message: str = context.get("message") or error["msg"]
    if message.startswith("should be ") and error["type"] in _FOUND_HERE and "(found" not in message:
        message = f"{message} (found {found(node)})"
    if "message" not in context:
        message = re.sub(r"^(?:Input|Value|String) should", "should", message)
        message = re.sub(r"^(?:Value|Assertion) (?:error|failed), ", "", message)
    suggestion: str = context.get("suggestion", "")
    near = nearest(str(node.value), context.get("known", ()))
    return message, f"Did you mean {near}? {suggestion}" if near else suggestion


def _choices(text: str) -> list[str]:
    """The choices that pydantic lists as ``'a', 'b' or 'c'``."""
    return re.findall(r"'([^']*)'", text) or re.split(r", | or ", text)
