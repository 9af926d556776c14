"""A model and its batches over the ranks of a process group."""
