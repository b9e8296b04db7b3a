"""Apache Beam transforms around the mechanisms."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # plans need few of them, and load fast
