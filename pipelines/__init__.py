"""The `privstream` command: pipelines, file formats, demo data and plots; and its questions about frames, in Python."""

from typing import TYPE_CHECKING, Any

from privstream.pipelines.questions.spec import loaded

if TYPE_CHECKING:
    from privstream.pipelines.frames import ask, read
    from privstream.pipelines.monitor.monitor import Monitor

__all__ = ["Monitor", "ask", "read"]

PLACES = {"Monitor": "monitor.monitor.Monitor", "ask": "frames.ask", "read": "frames.read"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: commands need none of it, and libraries are loaded with it."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return loaded(PLACES[name])
