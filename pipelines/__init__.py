"""The `privstream` command: pipelines, file formats, demo data and plots; and its questions about frames, in Python."""

from typing import TYPE_CHECKING, Any

from privstream.pipelines.frames import ask, read
from privstream.pipelines.questions.spec import loaded

if TYPE_CHECKING:
    from privstream.pipelines.monitor.monitor import Monitor

__all__ = ["Monitor", "ask", "read"]


def __getattr__(name: str) -> Any:
    """Import what takes Beam, which takes seconds to load, when it is asked for."""
    if name != "Monitor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return loaded("monitor.monitor.Monitor")
