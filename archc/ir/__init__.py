"""The vocabulary of a graph: sizes, values, parameters, states, nodes and scope bodies. It knows no op and no kind."""
