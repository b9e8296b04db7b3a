"""The only assembly of a run: from a monitor to its rows, its guarantee and its charge."""
