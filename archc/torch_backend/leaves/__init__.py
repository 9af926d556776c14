"""Lowerings to torch, one file an op family, mirroring ``archc/ops``."""
