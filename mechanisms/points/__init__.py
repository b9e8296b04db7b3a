"""Points of an ordered universe that come and go: range counts, predecessors and successors."""
