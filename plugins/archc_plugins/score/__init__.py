"""Scores: how queries and keys meet."""
