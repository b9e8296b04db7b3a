"""Cardinality: how many people are in a set now, while they come and go."""
