"""Graphs as onnxruntime files: built op by op, never traced; one lowering function an op, in files that mirror ``archc/ops``."""
