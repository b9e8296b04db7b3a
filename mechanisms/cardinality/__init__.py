"""How many people are in a set that changes."""
