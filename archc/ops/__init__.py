"""The ops: shapes, weights, states and costs, without torch. One file a family; lowerings mirror the file names."""
