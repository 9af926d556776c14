"""Seeing a run: what it tells at every step, who listens, and when it should stop."""
