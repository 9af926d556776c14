"""Whether a head reads the embedding's table must be said where it predicts tokens; works on plain data and on valid kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from archc.spec.kind import Kind
from archc.spec.nodes import Path, is_mapping
from archc.spec.schedule import Found
from archc.spec.slots import Slot

KEY = "tie_word_embeddings"

_EMBEDDING, _HEAD = Slot("embedding", default_kind="token"), Slot("head", default_kind="lm")


def check_table(spec: Mapping[str, Any]) -> Iterator[Found]:
    """A mistake when a head that may read a table of words meets an embedding that has the key and does not state it."""
    alone = spec.get("encoder") is not None and spec.get("decoder") is None
    path: Path = ("embedding",)
    embedding = spec.get("embedding")
    decoder = spec.get("decoder")
    own = decoder.get("embedding") if is_mapping(decoder) else getattr(decoder, "embedding", None)
    if own is not None:
        path, embedding = ("decoder", "embedding"), own
    head = _class(_HEAD, spec.get("head") or ("none" if alone else {}))
    table = _class(_EMBEDDING, embedding)
    if head is None or table is None or not getattr(head, "reads_table", True) or KEY not in table.model_fields:
        return
    stated = embedding.get(KEY) if is_mapping(embedding) else getattr(embedding, KEY, None)
    if stated is None:
        yield (*path, KEY), PydanticCustomError("missing", "tie_word_embeddings is required")


def _class(slot: Slot, value: Any) -> type[Kind] | None:
    if isinstance(value, Kind):
        return type(value)
    try:
        return slot.load(slot.name_in(value))
    except PydanticCustomError:
        return None
