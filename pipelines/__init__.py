"""The `privstream` command: pipelines, file formats, demo data and plots; and its questions about frames, in Python."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # plans need few of them, and load fast
