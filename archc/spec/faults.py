"""How a validator states a mistake: a stable code, what is wrong, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from archc.spec.nodes import Path

Error: TypeAlias = Mapping[str, Any]
"""One of pydantic's errors, as ``ValidationError.errors`` gives it."""

MAX_PROBLEMS = 100
"""Nobody reads more; a broken file can have thousands."""


def fault(message: str, suggestion: str = "", *, code: str = "value", known: Sequence[str] = ()) -> PydanticCustomError:
    """An error to raise inside a validator; the name someone meant is looked for among ``known`` when the error is worded."""
    context = {"message": message, "suggestion": suggestion, "known": list(known)}
    return PydanticCustomError(code, "{message}", context)  # pyright: ignore[reportArgumentType]


def faults(title: str, found: list[tuple[Path, PydanticCustomError]]) -> ValidationError:
    """Several errors, each at its own path; pydantic puts the path of the place they are raised at before them."""
    details = [InitErrorDetails(type=error, loc=path, input=None) for path, error in found]
    return ValidationError.from_exception_data(title, details)
