"""Memory of training a model on every rank."""
