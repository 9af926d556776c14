"""A folder of shards while it is written: tokens in files of bounded size, and where documents begin."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from archc.training.data.arrays import Array, GrowingArray
from archc.training.data.manifest import DOCUMENTS, shard_name

SHARD_TOKENS = 1 << 28
"""Half a GiB of two bytes a token."""


class ShardWriter:
    """Tokens one after the other; OSErrors are the caller's."""

    def __init__(self, folder: Path, dtype: str, *, shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder, self._dtype, self._room = folder, dtype, shard_tokens
        self._shard: GrowingArray | None = None
        self._shards = 0
        self.tokens = self.documents = 0
        self._starts = GrowingArray(folder / DOCUMENTS, "int64")

    def append(self, ids: Array, begins: Array) -> None:
        """Ids, and where among them documents begin."""
        self._starts.append(np.asarray(begins, np.int64) + self.tokens)
        self.documents += len(begins)
        self.tokens += len(ids)
        while len(ids):
            shard = self._shard or self._next()
            room = self._room - shard.length
            shard.append(ids[:room])
            ids = ids[room:]
            if shard.length == self._room:
                shard.close()
                self._shard = None

    def close(self) -> None:
        """Files are whole from here on."""
        if self._shard is not None:
            self._shard.close()
        self._starts.append(np.array([self.tokens]))
        self._starts.close()

    def _next(self) -> GrowingArray:
        self._shard = GrowingArray(self._folder / shard_name(self._shards), self._dtype)
        self._shards += 1
        return self._shard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._starts:
            if self._shard is not None:
                self._shard.__exit__(*error)
