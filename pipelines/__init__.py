"""The `privstream` command: pipelines, file formats, demo data and plots; and its questions about frames, in Python."""

from typing import TYPE_CHECKING, Any

from privstream.pipelines.model.continual import Flags, Histogram, Predecessor, Queries, Ranges
from privstream.pipelines.model.counted import Alerts, Cardinality, Counts, HeavyHitters, Quantiles, TopK
from privstream.pipelines.model.data import Data
from privstream.pipelines.model.monitor import Account, Monitor, Output, Privacy
from privstream.pipelines.model.question import Windows, loaded

if TYPE_CHECKING:
    from privstream.pipelines.beam import Private
    from privstream.pipelines.frames import ask, read

LATE = {"ask": "frames", "read": "frames", "Private": "beam"}

__all__ = [
    "Account", "Alerts", "Cardinality", "Counts", "Data", "Flags", "HeavyHitters", "Histogram", "Monitor", "Output",
    "Predecessor", "Privacy", "Private", "Quantiles", "Queries", "Ranges", "TopK", "Windows", "ask",
    "read",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for: commands need none of it, and libraries are loaded with it."""
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return loaded(f"{LATE[name]}.{name}")
