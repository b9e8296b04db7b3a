"""Counts of people per key, window by window."""
