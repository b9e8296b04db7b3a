"""The questions that people ask, each described once."""
