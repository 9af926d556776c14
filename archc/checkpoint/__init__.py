"""Published checkpoints, in and out: their configuration becomes a spec, their tensors archc's, and back."""
