"""Operators the PyTorch back end brings along."""
