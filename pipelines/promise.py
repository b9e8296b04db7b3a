"""What stands in the guarantee file beside rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privstream.pipelines.locations import BESIDE, GUARANTEE
from privstream.pipelines.stores import exists, opened

OF_MONITOR = "run"
"""The command whose guarantee files are about several results."""


def promise_path(path: str) -> str:
    """Return where the guarantee file of a result is, which may be a file or a folder; of a view that of its monitor.

    A view has none of its own.
    """
    own = os.path.join(path, GUARANTEE) if os.path.isdir(path) else f"{path}{BESIDE}"
    whole = os.path.join(os.path.dirname(path), GUARANTEE)
    return own if os.path.exists(own) or not os.path.exists(whole) else whole


@dataclass(frozen=True)
class Promise:
    """A guarantee file: where it is, and what a run has written into it."""

    path: str
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: str) -> Promise | None:
        """Return what a file promises, or None if there is none. What no command writes is a ValueError."""
        try:
            if not exists(path):
                return None
            with opened(path) as file:
                content = json.loads(file.read())
        except (ValueError, OSError, RecursionError) as error:
            raise ValueError(f"{path} must be a guarantee that privstream wrote ({type(error).__name__})") from None
        if not isinstance(content, dict):
            raise ValueError(f"{path} must be a guarantee that privstream wrote, one JSON object")
        return cls(path, content)

    @property
    def word(self) -> str:
        """The word of the command that made it."""
        return str(self.maybe("made_by", "command")).removeprefix("privstream ")

    def at(self, *names: str) -> Any:
        """Return what stands at a place of the file, which must be there, or a ValueError names file and place."""
        found: Any = self.content
        for name in names:
            if not isinstance(found, Mapping) or name not in found:
                raise ValueError(f"{self.path} must be a guarantee that privstream wrote, with {'.'.join(names)}")
            found = found[name]
        return found

    def maybe(self, *names: str) -> Any:
        """Return what stands at a place of the file, or None."""
        try:
            return self.at(*names)
        except ValueError:
            return None
