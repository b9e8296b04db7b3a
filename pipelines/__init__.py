"""The `privstream` command: pipelines, file formats, demo data and plots; and its questions about frames, in Python."""

from privstream.pipelines.frames.ask import ask
from privstream.pipelines.frames.read import read

__all__ = ["ask", "read"]
