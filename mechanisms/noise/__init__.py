"""Keyed integer noise: sources of random bits, exact laws, and their tails."""
