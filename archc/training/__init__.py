"""Training on torch's own engine: teacher forcing, FSDP2, DTensor, pipelining and DCP, laid out by the graph's axes."""
