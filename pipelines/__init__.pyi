"""The `privstream` command: pipelines, file formats, demo data and plots; and its questions about frames, in Python."""

from .beam import Private
from .frames import ask, read
from .model.catalogue import (
    Alerts,
    Cardinality,
    Counts,
    Flags,
    HeavyHitters,
    Histogram,
    Predecessor,
    Quantiles,
    Queries,
    Ranges,
    TopK,
)
from .model.monitor import Account, Data, Monitor, Output, Privacy
from .model.question import Windows

__all__ = [
    "Account", "Alerts", "Cardinality", "Counts", "Data", "Flags", "HeavyHitters", "Histogram", "Monitor", "Output",
    "Predecessor", "Privacy", "Private", "Quantiles", "Queries", "Ranges", "TopK", "Windows", "ask", "read",
]  # fmt: skip
