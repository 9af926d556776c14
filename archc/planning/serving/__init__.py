"""Memory of serving a model on every rank, and what fits."""
