"""Scalings of rope frequencies."""
