"""Queries on the column sums of a stream, after every step, by private interval partitioning."""
