"""Quantiles of numbers: medians and percentiles of what people or events measure."""
