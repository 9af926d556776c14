"""Files that onnxruntime-genai runs: its inputs, its configuration, and what its runtime can't hold."""
