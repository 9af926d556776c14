"""What a model learns from rows of tokens."""
