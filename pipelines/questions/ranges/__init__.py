"""Ranges: how many points lie in public ranges, while points come and go."""
