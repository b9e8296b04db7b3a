"""Counts: how many people have each item, which nobody needs to name beforehand."""
