"""Monitors: many questions in one file, with one privacy budget."""
