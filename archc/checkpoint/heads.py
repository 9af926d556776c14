"""Whether a head is the embedding again: the configuration's flag beside the tensors, which have the last word.

A checkpoint whose configuration ties the head, and which holds another head than the embedding, is loaded untied by
transformers.
"""

from __future__ import annotations

from collections.abc import Sequence

from archc.checkpoint.rules import Naming, Rule, renamed
from archc.checkpoint.tensors import Stored

HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_ROW_BYTES = 64 << 20


def stored_head(rules: Sequence[Rule], naming: Naming, stored: Stored) -> tuple[str, str] | None:
    """(name of the head's tensor, name of the embedding's), where the checkpoint holds both."""
    theirs = {entry.ours[0]: renamed(entry.theirs, naming) for entry in rules if len(entry.ours) == 1}
    head, embedding = theirs.get(HEAD), theirs.get(EMBEDDING)
    if head is None or embedding is None or head not in stored.homes or embedding not in stored.homes:
        return None
    return head, embedding


def are_equal(first: str, second: str, stored: Stored) -> bool:
    """Whether two tensors are the same bit by bit, looked at in pieces."""
    one, other = stored.homes[first], stored.homes[second]
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if not one.shape:
        return stored.read(first).tobytes() == stored.read(second).tobytes()
    rows = max(1, _ROW_BYTES * one.shape[0] // max(1, one.size_bytes))
    return all(
        stored.rows(first, start, min(start + rows, one.shape[0])).tobytes()
        == stored.rows(second, start, min(start + rows, one.shape[0])).tobytes()
        for start in range(0, one.shape[0], rows)
    )
