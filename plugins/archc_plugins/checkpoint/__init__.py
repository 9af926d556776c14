"""Families of published checkpoints: their configurations and the names of their tensors."""
