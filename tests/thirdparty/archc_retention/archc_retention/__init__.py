"""Retention for archc: a mixer over an op of its own, with a lowering to torch and one to ONNX."""
