"""What stands in the guarantee file beside rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

UNKNOWN = "as high as the run was asked for"
"""The probability of error bounds where the guarantee file is not there."""


@dataclass(frozen=True)
class Promise:
    """A guarantee file.

    Attributes:
        path: where it is.
        content: what a run has written into it.
    """

    path: str
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: str) -> Promise | None:
        """Return what a file promises, or None if there is no such file.

        Raises:
            ValueError: it is not one that a command writes; the message names the file.
        """
        try:
            if not FileSystems.exists(path):
                return None
            with FileSystems.open(path) as file:
                content = json.loads(file.read())
        except (ValueError, OSError, BeamIOError, RecursionError) as error:
            raise ValueError(f"{path} must be a guarantee that privstream wrote ({type(error).__name__})") from None
        if not isinstance(content, dict):
            raise ValueError(f"{path} must be a guarantee that privstream wrote, one JSON object")
        return cls(path, content)

    def number(self, *names: str) -> Any:
        """Return what stands at a place of the file, which must be there.

        Raises:
            ValueError: it is not; the message names file and place.
        """
        found: Any = self.content
        for name in names:
            if not isinstance(found, Mapping) or name not in found:
                raise ValueError(f"{self.path} must be a guarantee that privstream wrote, with {'.'.join(names)}")
            found = found[name]
        return found

    def maybe(self, *names: str) -> Any:
        """Return what stands at a place of the file, or None."""
        try:
            return self.number(*names)
        except ValueError:
            return None


def percent(promise: Promise | None) -> str:
    """Return the probability with which error bounds are right, such as 95%, in words."""
    beta = None if promise is None else promise.maybe("parameters", "beta")
    return f"{100 * (1 - beta):.8g}%" if isinstance(beta, float) else UNKNOWN
