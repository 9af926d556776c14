"""Texts as rows of ids: read in pieces, tokenised once into memory-mapped shards, cut into rows in an order by seed."""
