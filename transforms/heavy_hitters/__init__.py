"""Shifting heavy hitters: the items that many people hold in each window."""
