"""The questions that people ask: each in a room of its own, described once."""
