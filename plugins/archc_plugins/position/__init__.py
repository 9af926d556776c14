"""Positional schemes."""
