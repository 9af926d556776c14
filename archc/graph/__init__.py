"""The graph of a whole model: how it is built, verified and written down."""
