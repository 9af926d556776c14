"""A third party's package, as small as one can be: a mixer of its own, over an op of its own, for torch and for ONNX."""
