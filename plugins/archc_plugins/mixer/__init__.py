"""Token mixers."""
