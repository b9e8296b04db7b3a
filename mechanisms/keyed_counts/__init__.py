"""Counts and sums per key, with keys that nobody knew before: window by window, or over many windows."""
