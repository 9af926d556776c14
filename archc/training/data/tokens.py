"""A folder of shards as one long row of ids that is never loaded."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from archc.errors import ArchcError
from archc.training.data.arrays import Array, map_array
from archc.training.data.manifest import DOCUMENTS, Manifest, read_manifest, shard_name

_OPEN_SHARDS = 256
_CHECKED_AT_ONCE = 1 << 20


class Tokens:
    """Ids of documents, one after the other; ``starts`` (documents + 1,) int64 is where each begins and where the last ends."""

    def __init__(self, folder: Path) -> None:
        """Raises ArchcError where the folder is not whole."""
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder)
        found = self.manifest
        self.starts: Array = map_array(folder / DOCUMENTS, "int64", found.documents + 1)
        self._check_starts()
        self._shard = lru_cache(_OPEN_SHARDS)(self._map_shard)
        for number in range(found.shards):
            path = folder / shard_name(number)
            if not path.is_file():
                raise ArchcError(f"{path} is missing; remove {folder}, and it is made again")

    def __len__(self) -> int:
        """Tokens."""
        return self.manifest.tokens

    @property
    def documents(self) -> int:
        return self.manifest.documents

    @property
    def source(self) -> str:
        """What people know it by: the files that it was made of, else its folder."""
        names = [file.path for file in self.manifest.inputs]
        return ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])]) or str(self.folder)

    @property
    def is_paired(self) -> bool:
        """Whether every second document is the target of the one before."""
        return self.manifest.form == "pairs"

    @property
    def digest(self) -> str:
        """Equal where texts and vocabularies are: what a resumed run compares."""
        return self.manifest.digest()

    def read(self, start: int, end: int) -> Array:
        """Ids from ``start`` up to ``end``, int64, from as many shards as they lie in."""
        room = self.manifest.shard_tokens
        first, last = start // room, (max(end, start + 1) - 1) // room
        if first == last:
            return self._shard(first)[start - first * room : end - first * room].astype(np.int64)
        parts = [
            self._shard(number)[max(start - number * room, 0) : min(end - number * room, room)]
            for number in range(first, last + 1)
        ]
        return np.concatenate(parts).astype(np.int64)

    def _map_shard(self, number: int) -> Array:
        found = self.manifest
        return map_array(self.folder / shard_name(number), found.dtype, found.shard_length(number))

    def _check_starts(self) -> None:
        starts = self.starts
        is_whole = int(starts[0]) == 0 and int(starts[-1]) == len(self)
        for at in range(0, len(starts), _CHECKED_AT_ONCE):
            is_whole = is_whole and bool((np.diff(starts[at : at + _CHECKED_AT_ONCE + 1]) > 0).all())
        if not is_whole:
            raise ArchcError(f"{self.folder / DOCUMENTS} is no list of where documents begin; make the folder again")
