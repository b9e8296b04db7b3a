"""The `privstream` command: pipelines, file formats, demo data and plots; and its questions about frames, in Python."""

from privstream.pipelines.frames import ask, read

__all__ = ["ask", "read"]
