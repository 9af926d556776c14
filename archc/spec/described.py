"""What the fields of a model mean, in its author's words: read off the source when somebody asks, so start-up pays nothing."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from pydantic import BaseModel

Model = type[BaseModel]


def described(model: Model) -> dict[str, str]:
    """Field -> its meaning: the field's description, else the text under it in the nearest class that has one."""
    found: dict[str, str] = {}
    for base in model.__mro__:
        if issubclass(base, BaseModel):
            found = {**_texts(base), **found}
    stated = {name: field.description for name, field in model.model_fields.items() if field.description}
    return {name: text for name, text in {**found, **stated}.items() if name in model.model_fields}


def summary(model: Model) -> str:
    """The first paragraph of a model's own docstring, on one line."""
    text = inspect.cleandoc(model.__dict__.get("__doc__") or "")
    return " ".join(text.partition("\n\n")[0].split())


@cache
def _texts(model: Model) -> dict[str, str]:
    """The string under each field of one class body; nothing for a class without a source."""
    try:
        source = inspect.getsource(model)
    except (OSError, TypeError):
        return {}
    (body,) = ast.parse(textwrap.dedent(source)).body
    return dict(_pairs(body.body)) if isinstance(body, ast.ClassDef) else {}


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            yield field.target.id, " ".join(text.value.value.split())
