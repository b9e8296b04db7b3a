"""Mechanisms that publish after every step what has happened since the start, or is so now."""
