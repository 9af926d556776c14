"""Costs of many variants of a spec, and values that meet a budget."""
