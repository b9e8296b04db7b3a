"""Predecessor: what is nearest to public points, below and above, while points come and go."""
