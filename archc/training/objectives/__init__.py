"""What a model is taught: batches of inputs and of what they should predict, a function of data, seed, step and row alone."""
