"""Residual layouts."""
