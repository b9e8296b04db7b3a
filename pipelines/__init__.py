"""The `privstream` command: pipelines, file formats, demo data and plots; and its questions about frames, in Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privstream.pipelines.beam import Private, PrivateMonitor
    from privstream.pipelines.frames import ask, read
    from privstream.pipelines.model.continual import Flags, Histogram, Predecessor, Queries, Ranges
    from privstream.pipelines.model.counted import Alerts, Cardinality, Counts, HeavyHitters, Quantiles, TopK
    from privstream.pipelines.model.data import Data
    from privstream.pipelines.model.monitor import Account, Monitor, Output, Privacy
    from privstream.pipelines.model.question import Windows

COUNTED = ("Alerts", "Cardinality", "Counts", "HeavyHitters", "Quantiles", "TopK")
CONTINUAL = ("Flags", "Histogram", "Predecessor", "Queries", "Ranges")
OF_MONITORS = ("Account", "Monitor", "Output", "Privacy")
PLACES = {
    **{"ask": "frames", "read": "frames", "Private": "beam", "PrivateMonitor": "beam"},
    **{"Data": "model.data", "Windows": "model.question"},
    **dict.fromkeys(COUNTED, "model.counted"),
    **dict.fromkeys(CONTINUAL, "model.continual"),
    **dict.fromkeys(OF_MONITORS, "model.monitor"),
}

__all__ = [
    "Account",
    "Alerts",
    "Cardinality",
    "Counts",
    "Data",
    "Flags",
    "HeavyHitters",
    "Histogram",
    "Monitor",
    "Output",
    "Predecessor",
    "Privacy",
    "Private",
    "PrivateMonitor",
    "Quantiles",
    "Queries",
    "Ranges",
    "TopK",
    "Windows",
    "ask",
    "read",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: commands need none of it, and libraries are loaded with it."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from privstream.pipelines.model.question import loaded  # noqa: PLC0415 - late, as all is here

    return loaded(f"{PLACES[name]}.{name}")
