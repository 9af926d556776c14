"""A tokenizer that the spec only counts."""

from __future__ import annotations

from archc_plugins.tokenizer.base import Sized


class External(Sized):
    """A tokenizer kept elsewhere, in ``file`` (a tokenizer.json) or nowhere; only its size matters here."""
