"""What a model costs, read off its graph: parameters, cache bytes, FLOPs. Nothing here imports torch or numpy."""
