"""Queries above a threshold and the largest ones, with free gaps; answers that learn."""
