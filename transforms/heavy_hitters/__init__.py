"""Shifting heavy hitters: the items that many people have in each window."""
