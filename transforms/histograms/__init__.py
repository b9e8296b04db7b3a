"""Live counts of public categories, and flags for those that pass their thresholds."""
