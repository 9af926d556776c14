"""The name someone meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known name most like ``name``, or an empty text. A long name is no typo, and of many names only 200 are tried."""
    if len(name) > 100:
        return ""
    known = list(islice(known, 200))
    folded = name.lower().replace("-", "_")
    if folded in known:
        return folded
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), "")


def with_article(word: str) -> str:
    """``a mixer``, ``an ffn``."""
    return f"{'an' if word[0] in 'aeiou' or word == 'ffn' else 'a'} {word}"


def listed(names: Iterable[str], word: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    items = list(names)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}" if items else ""
