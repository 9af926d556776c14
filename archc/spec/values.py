"""Values with a notation of their own: scales and dtypes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from archc.spec.faults import fault
from archc.spec.near import nearest
from archc.spec.scalars import shortened
from archc.units import SHORT_DTYPES, SPEC_DTYPES

TYPE_NAME = "x-archc-type"
"""What the manual calls a type with a notation of its own; no part of the JSON Schema that is written."""

_NUMBER = r"(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_SCALE = re.compile(
    rf"(?P<top>[-+]?(?:{_NUMBER}))?(?P<slash>/)?(?:(?P<bottom>{_NUMBER})|sqrt\((?P<root>{_NUMBER}|[a-z][a-z0-9_]*)\))?"
)
_FORMS = "A scale is a number, a/b, sqrt(x) or a/sqrt(x)"
_SCALE_PATTERN = r"^[-+]?[0-9.eE+-]+(/[0-9.eE+-]+)?$|^([-+]?[0-9.eE+-]+/)?sqrt\([a-z0-9_.]+\)$"


@dataclass(frozen=True, slots=True)
class Scale:
    """A factor: ``top`` times or over the square root of ``root`` (a number, or the name of one), or ``top / bottom``."""

    top: float
    bottom: float = 1
    root: float | str | None = None
    divides: bool = False

    @classmethod
    def parse(cls, value: Any) -> Scale:
        """The scale that a number or a text stands for.

        Raises:
            PydanticCustomError: it stands for none.
        """
        if isinstance(value, Scale):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return cls(value)
        if not isinstance(value, str):
            raise fault("should be a scale", _FORMS, code="scale")
        found = _SCALE.fullmatch(value.strip()) if len(value) < 200 else None
        scale = None if found is None else cls._of(found)
        if scale is None:
            hint = f"{_FORMS}; x is a number, hidden_size or a key beside it"
            raise fault(f"should be a scale (found {shortened(value)})", hint, code="scale")
        return scale

    @classmethod
    def _of(cls, found: re.Match[str]) -> Scale | None:
        top, bottom, root, slash = found["top"], found["bottom"], found["root"], found["slash"] is not None
        has_divisor = bottom is not None or root is not None
        # A number alone is written without quotes, and then it is no text.
        if slash != (top is not None and has_divisor) or not has_divisor:
            return None
        numbers = [_number(top or "1"), _number(bottom or "1")]
        under = root if root is None or root[0].isalpha() else _number(root)
        if not all(map(math.isfinite, numbers)) or numbers[1] == 0:
            return None
        if isinstance(under, int | float) and not (math.isfinite(under) and under > 0):
            return None
        return cls(numbers[0], numbers[1], under, divides=slash and root is not None)

    @property
    def names_used(self) -> tuple[str, ...]:
        """The name under the root, if there is one."""
        return (self.root,) if isinstance(self.root, str) else ()

    def resolve(self, names: Mapping[str, float]) -> float:
        """The factor as a number; ``names`` gives ``hidden_size`` and the numeric keys beside the scale."""
        if self.root is None:
            return self.top / self.bottom
        root = math.sqrt(names[self.root] if isinstance(self.root, str) else self.root)
        return self.top / root if self.divides else self.top * root

    def fault(self, numbers: Mapping[str, float]) -> PydanticCustomError | None:
        """What is wrong with the name under the root, given the numeric keys beside the scale."""
        name = self.root
        if not isinstance(name, str) or (name == "hidden_size" and name not in numbers):
            return None
        if name in numbers:
            return None if numbers[name] > 0 else fault(f"{name} should be above 0 to stand under a root", code="scale")
        known = ["hidden_size", *numbers]
        near = nearest(name, known, cutoff=0.5)
        prefix = f"{_text(self.top)}/" if self.divides else ""
        hint = f"Did you mean {prefix}sqrt({near})?" if near else f"It can name {', '.join(known)}"
        return fault(f"no value called {name} here", hint, code="scale")

    def __str__(self) -> str:
        if self.root is None:
            return _text(self.top) if self.bottom == 1 else f"{_text(self.top)}/{_text(self.bottom)}"
        root = f"sqrt({self.root if isinstance(self.root, str) else _text(self.root)})"
        return f"{_text(self.top)}/{root}" if self.divides else root

    def plain(self) -> str | float:
        """The scale as a spec writes it."""
        return self.top if self.root is None and self.bottom == 1 else str(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(cls.plain)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "number"}, {"type": "string", "pattern": _SCALE_PATTERN}], TYPE_NAME: "scale"}


ONE = Scale(1)


def _number(text: str) -> float:
    """An integer where the text is one, so that 1/168 stays exact as long as it can."""
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _text(number: float) -> str:
    return str(number)


def _known_dtype(name: str) -> str:
    if name in SPEC_DTYPES:
        return name
    if name in SHORT_DTYPES:
        hint = f"Did you mean {SHORT_DTYPES[name]}? Short forms are for the command line"
    else:
        near = nearest(name, SPEC_DTYPES)
        hint = f"Did you mean {near}?" if near else f"Known are {', '.join(SPEC_DTYPES)}"
    raise fault(f"unknown (found {shortened(name)})", hint, code="dtype")


Dtype = Annotated[str, AfterValidator(_known_dtype), WithJsonSchema({"enum": list(SPEC_DTYPES), TYPE_NAME: "dtype"})]
"""Torch's name of a dtype that a spec may state."""
