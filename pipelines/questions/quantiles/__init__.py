"""Quantiles: how events are spread over public categories so far."""
