"""A field that holds some kind of a family: ``Annotated[Any, Slot("position")]``."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from archc import registry
from archc.errors import PluginError
from archc.spec.faults import fault
from archc.spec.kind import Kind
from archc.spec.near import with_article
from archc.spec.nodes import is_mapping
from archc.spec.scalars import shortened

MARKER = "x-archc-slot"
"""Where pydantic's schema of a model has a slot."""


class Slot:
    """Takes an instance, a mapping that names its kind under ``key``, or the bare name, and gives an instance of that kind.

    A mapping without the key is of ``default_kind``; without one, the kind must be stated. With ``flag`` true and false
    are values too, and mean what the holder of the field says.
    """

    __slots__ = ("default_kind", "family", "flag", "key")

    def __init__(self, family: str, *, default_kind: str | None = None, key: str = "kind", flag: bool = False) -> None:
        self.family = family
        self.default_kind = default_kind
        self.key = key
        self.flag = flag

    def validate(self, value: Any) -> Any:
        """The kind that ``value`` describes; None (a field left to its default) stays.

        Raises:
            PydanticCustomError: no kind is named, or none that is installed.
            ValidationError: the kind refuses its keys.
        """
        if value is None or (self.flag and isinstance(value, bool)):
            return value
        if isinstance(value, Kind):
            if value.family and value.family != self.family:
                raise fault(f"should be {self._one()} (found {with_article(value.family)})", code="slot")
            return value
        name = self.name_in(value)
        if is_mapping(value):
            return self.load(name).model_validate({key: item for key, item in value.items() if key != self.key})
        return self.load(name).model_validate({})

    def name_in(self, value: Any) -> str:
        """The kind that a mapping or a bare name states.

        Raises:
            PydanticCustomError: it states none.
        """
        if isinstance(value, str):
            return value
        if not is_mapping(value):
            raise fault(f"should be {self._one()}", f"A mapping with its {self.key}, or the bare name", code="slot")
        name = value.get(self.key, self.default_kind)
        if name is None:
            raise fault(f"{self.key} is required", self._offer(), code="kind_missing")
        if not isinstance(name, str):
            raise fault(f"should be the name of {self._one()}", self._offer(), code="kind_name")
        return name

    def load(self, name: str) -> type[Kind]:
        """The class of an installed kind, with its ``kind_name`` set.

        Raises:
            PydanticCustomError: no such kind is installed.
            PluginError: it is installed, but broken.
        """
        found = registry.find(self.family, name)
        if found is None:
            message = f"unknown {self._one().partition(' ')[2]} (found {shortened(name)})"
            raise fault(message, self._offer(), code="kind_unknown", known=registry.names(self.family))
        if not (isinstance(found, type) and issubclass(found, Kind)):
            raise PluginError(f"{self.family} {name!r} is no subclass of archc.spec.kind.Kind")
        if found.kind_name != name:
            if found.kind_name and registry.find(self.family, found.kind_name) is found:
                raise PluginError(
                    f"{found.__name__} is registered as {found.kind_name!r} and as {name!r}; one class is one kind"
                )
            found.kind_name = name
        return found

    def _one(self) -> str:
        return "a cache policy" if self.family == "cache" else with_article(self.family)

    def _offer(self) -> str:
        return f"Installed: {', '.join(registry.names(self.family)) or 'none'}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        # Kinds hold slots that hold kinds, so ``json_schema`` writes each family once and replaces this by a reference to it.
        marker = {MARKER: {"family": self.family, "default_kind": self.default_kind, "key": self.key}}
        return {"anyOf": [{"type": "boolean"}, marker]} if self.flag else marker
