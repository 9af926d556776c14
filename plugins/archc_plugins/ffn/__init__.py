"""Feed-forwards."""
