"""Graphs as PyTorch modules. With ``checkpoint``, the only part of the core that imports torch."""
