"""Apache Beam transforms around the mechanisms."""

from privstream.mechanisms.exports import exports

__getattr__, __all__ = exports(__name__, __file__)
