"""Queries: linear queries about a data set, answered one after the other."""
