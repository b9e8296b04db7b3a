"""What stands in the guarantee file beside rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.stores import exists, opened
from privstream.pipelines.terminal import printable


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
    def clocks(self) -> Clocks:
        """The clocks by which times of the run are shown."""
        parameters = self.maybe("parameters")
        return Clocks.of(parameters if isinstance(parameters, Mapping) else {})

    @property
    def limited(self) -> bool:
        """Whether limits may leave something out of the numbers for which intervals do not allow."""
        intervals = self.maybe("accuracy", "intervals") or {}
        return bool(intervals.get("leave_out") and not intervals.get("allow"))

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


def shown_in_words(row_type: Any, promise: Promise, shown: Sequence[str]) -> str:
    """Say what a terminal shows beside numbers, and what limits leave out; files have all columns."""
    texts = ["Between: 95% intervals, each by itself."] if "between" in shown else []
    if "error_bound" in shown:
        stated = promise.maybe("accuracy", "intervals", "probability")
        sure = f", with probability {100 * stated:.8g}% for all together" if isinstance(stated, float) else ""
        texts.append(f"Error bound: how far numbers are off at most{sure}.")
    left_out, allowed = (promise.maybe("accuracy", "intervals", name) for name in ("leave_out", "allow"))
    if isinstance(left_out, str) and left_out:
        texts.append(f"{printable(allowed)}." if allowed else f"Not counted: {printable(left_out)}.")
    return " ".join(texts)


NOTHING_KNOWN = "nothing is known"
NEARLY = 0.95
"""Such a part of the range from `low` to `high`, as bins divide it, is nearly all of it."""


def covers_all(lower: Any, upper: Any, parameters: Mapping[str, Any]) -> Any:
    """Tell which intervals cover the whole range of a run, or nearly; none where the range is not known.

    Args:
        lower, upper: ends of intervals, float64 of one shape.
        parameters: of the run, as its guarantee file has them: `low`, `high` and perhaps `scale`.

    Returns:
        bool, of that shape.
    """
    low, high = parameters.get("low"), parameters.get("high")
    if low is None or high is None:
        return np.zeros(np.shape(lower), bool)
    scaled = np.log if parameters.get("scale") == "log" else np.float64
    return scaled(upper) - scaled(lower) >= NEARLY * (scaled(high) - scaled(low))


def in_words(row: Any, parameters: Mapping[str, Any]) -> Any:
    """Return a row for people: where an interval says nothing there are words in place of its numbers."""
    nothing = hasattr(row, "estimate") and hasattr(row, "lower") and covers_all(row.lower, row.upper, parameters)
    return row._replace(**dict.fromkeys({"estimate", "smoothed"} & {*row._fields}, NOTHING_KNOWN)) if nothing else row
