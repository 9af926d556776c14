"""Readable twins: slow, plain versions that judge the fast operators."""
