"""Exported folders at work on onnxruntime: caches in place, chunked prefill, sampling, text."""
