"""The paged cache."""

from __future__ import annotations

from pydantic import PositiveInt

from archc.families import CachePolicy


class Paged(CachePolicy):
    """All that the mask still reaches, given out in blocks (PagedAttention, arXiv 2309.06180).

    A rule for counting: what a paged runtime takes is estimated, torch and ONNX store rows one after the other.
    """

    block_size: PositiveInt = 16
    """Tokens a block."""

    def block_tokens(self) -> int:
        return self.block_size
