"""Differentially private mechanisms over streams, on numpy arrays. Never imports Apache Beam."""

from privstream.mechanisms.exports import exports

__getattr__, __all__ = exports(__name__, __file__)
