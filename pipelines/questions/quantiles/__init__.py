"""Quantiles: the median and percentiles of numbers in events."""
