"""Histogram: how many events of each public category there have been so far, and queries on these counts."""
