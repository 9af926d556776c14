"""No positional scheme."""

from archc.families import Position


class NoPosition(Position):
    """No order, or order from recurrence alone (NoPE)."""
