"""Which execution provider gets each node of an ONNX file, what is copied between them, and which limits of ops it meets."""
