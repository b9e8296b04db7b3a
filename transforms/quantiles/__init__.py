"""Quantiles of numbers, window by window."""
