"""Routers of a mixture of experts."""
