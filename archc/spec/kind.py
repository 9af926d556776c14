"""The base of every plugin kind: a frozen mapping of YAML keys, with rules across its fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic_core import core_schema

from archc.spec.faults import fault, faults
from archc.spec.nodes import Path, is_mapping
from archc.spec.values import Scale


class Section(BaseModel):
    """A mapping of the language: unknown keys are refused, nothing is converted, null means the default.

    Strict but for two things YAML can't say: an integer is also a float, and a list is also a tuple.
    """

    # Families' bases are never validated: a validator is built when it is first used.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    _tuples: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._tuples = frozenset(name for name, field in cls.model_fields.items() if _holds_tuple(field.annotation))

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        # Only schemas and manuals need it, and it reads source files.
        from archc.spec.described import described, summary

        found = handler.resolve_ref_schema(handler(schema))
        found["description"] = summary(cls)
        meanings = described(cls)
        for name, field in cls.model_fields.items():
            member = found.get("properties", {}).get(field.alias or name)
            if member is not None and name in meanings:
                member["description"] = meanings[name]
        return found

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not is_mapping(data):
            return data
        # An unknown key with null stays, to be refused.
        known: dict[str, Any] = {
            key: value for key, value in data.items() if value is not None or key not in cls.model_fields
        }
        for key in cls._tuples & known.keys():
            if isinstance(items := known[key], list):
                known[key] = tuple(cast("list[Any]", items))
        return known


class Kind(Section):
    """One kind of a family: its fields are the YAML keys beside ``kind``.

    ``family`` is stated by the family's base class; ``kind_name`` is the entry point's name, set when a slot loads the class.
    """

    family: ClassVar[str] = ""
    kind_name: ClassVar[str] = ""

    def rules(self) -> Iterator[tuple[str, str]]:
        """Mistakes across fields as (field, message); asked once the fields themselves are valid.

        ``router.n_group`` names a field of the kind that a field holds.
        """
        yield from ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        found: list[tuple[Path, Any]] = [((name,), error) for name, error in self._scale_faults()]
        if not found:
            found = [(tuple(name.split(".")), fault(message, code="rule")) for name, message in self.rules()]
        if found:
            raise faults(type(self).__name__, found)
        return self

    def _scale_faults(self) -> Iterator[tuple[str, Any]]:
        for name, value in self:
            if isinstance(value, Scale) and (error := value.fault(self.numbers())) is not None:
                yield name, error

    def numbers(self) -> dict[str, float]:
        """The numeric keys that hold a value: what a scale of this kind may name, beside ``hidden_size``."""
        return {name: value for name, value in self if isinstance(value, int | float) and not isinstance(value, bool)}


def _holds_tuple(annotation: Any) -> bool:
    if annotation is tuple or get_origin(annotation) is tuple:
        return True
    return any(_holds_tuple(part) for part in get_args(annotation) if get_origin(annotation) not in (list, dict))
