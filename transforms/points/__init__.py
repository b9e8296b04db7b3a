"""Answers about sets of points: ranges, predecessors and successors."""
