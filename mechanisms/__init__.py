"""Differentially private mechanisms over streams, on numpy arrays. Never imports Apache Beam."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # plans need few of them, and load fast
