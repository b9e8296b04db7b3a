"""Heavy hitters that shift: tests of hidden thresholds, with a counter for every person."""
