"""The full cache."""

from archc.families import CachePolicy


class Full(CachePolicy):
    """All that the mask still reaches, in one buffer: every token, or a ring of W rows under a window."""
