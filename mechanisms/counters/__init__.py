"""Continual counters: the sums of a stream after every step."""
