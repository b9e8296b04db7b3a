"""What stands in the guarantee file beside rows, and how intervals are told; also those that say nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.stores import exists, opened
from privstream.pipelines.terminal import printable

UNKNOWN = "as high as the run was asked for"
"""The probability of error bounds where the guarantee file is not there."""

UNSTATED = "the numbers of what counts within the limits of the run"
"""What intervals hold where the guarantee file is not there, or does not say it."""


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


def left_out(promise: Promise | None) -> str:
    """Return what limits may keep out of intervals, as a part of a sentence; empty if nothing, or not known."""
    return _of_intervals(promise, "leave_out") or ""


def held(promise: Promise | None) -> str:
    """Return what intervals hold, in the plural."""
    return _of_intervals(promise, "hold") or UNSTATED


def without_limits(promise: Promise | None) -> str:
    """Return how a sentence about intervals goes on: with what limits may keep out of them, if anything."""
    return f", but without what limits leave out: {leave}" if (leave := left_out(promise)) else ""


def certainty(promise: Promise | None) -> str:
    """Return how sure intervals are, and which of them at once, as a part of a sentence."""
    scope = _of_intervals(promise, "scope")
    return f"with probability {percent(promise)}{f', {scope}' if scope else ''}"


def meaning(promise: Promise | None, what: str) -> str:
    """Return what intervals mean, in sentences that begin with what shows them."""
    where = f"{what}: where {held(promise)} are, {certainty(promise)}"
    return f"{where}{without_limits(promise)}.{remark(promise)}"


def remark(promise: Promise | None) -> str:
    """Return what else there is to say of intervals, as a sentence after a space; empty if nothing."""
    return f" {said}" if (said := _of_intervals(promise, "note")) else ""


OF_ROWS = "Lower, upper: where the same number is with probability 95%, of each row by itself."
IF_GIVEN = OF_ROWS.replace(":", ", if given:", 1)
EACH_BY_ITSELF = (
    f"{OF_ROWS} Smoothed, if given: an estimate of it from several windows; its interval rests on a model in which "
    "counts stay near a level that moves."
)

OF_COUNTS = (
    "an estimate from several windows; its interval of 95% rests on a model in which counts stay near a level that "
    "moves."
)

ONE_DEVIATION = "±: one standard deviation of the noise."


def _of_columns(names: Sequence[str], promise: Promise, spread: str) -> str:
    """Say the same of columns by their names."""
    texts: list[str] = []
    of_counts = {"smoothed", "item"} <= {*names}
    by_itself = of_counts or {"error_bound", "lower"} <= {*names}
    if any(name.endswith("_stddev") and name.removesuffix("_stddev") in names for name in names):
        texts.append(spread)
    bounds = [name for name in (("error_bound",) if by_itself else ("error_bound", "lower", "upper")) if name in names]
    if _of_intervals(promise, "hold") == "":
        texts.append("Error bound: none is stated.")
    elif "raised" in names:
        counts = held(promise).removesuffix(",")
        rest = f"{certainty(promise)}; these counts are {counts}{without_limits(promise)}.{remark(promise)}"
        texts.append(f"Error bound: a flag is wrong only where the count is within it of the threshold, {rest}")
    elif {"predecessor", "error_bound"} <= {*names}:
        texts.append(f"Error bound: at most so many points lie between a query and its answers, {certainty(promise)}.")
    elif bounds:
        ends = f", {', '.join(bounds[1:])}" if bounds[1:] else ""
        what = f"Number ± error bound{ends}" if "error_bound" in bounds else ", ".join(bounds).capitalize()
        texts.append(meaning(promise, what))
        if by_itself:
            texts.append(EACH_BY_ITSELF if of_counts else IF_GIVEN)
        elif "smoothed" in names:
            texts.append(f"Smoothed, if given: {OF_COUNTS}")
    elif "gap_lower_bound" in names:
        sure = f"{certainty(promise)}{without_limits(promise)}.{remark(promise)}"
        texts.append(f"Gap lower bound: {held(promise)} pass the threshold by at least so much, {sure}")
    elif without := without_limits(promise):
        texts.append(f"Counts: {held(promise)}{without}.{remark(promise)}")
        if of_counts:
            texts.append(EACH_BY_ITSELF)
    return " ".join(texts)


ALL_IN_FILES = "Files (--output PATH) have all columns."


def shown_in_words(row_type: Any, promise: Promise, shown: Sequence[str]) -> str:
    """Say what the columns mean that a terminal shows of a table: one interval, where files have several."""
    names = {*row_type._fields} - {"stream", "window_end", "epsilon_spent", "epsilon_left", "stopped"}
    hidden = {name for name in names - {*shown} if not name.endswith("_stddev")}
    more = [ALL_IN_FILES] if hidden else []
    if "between" not in shown:
        kept = [name for name in row_type._fields if name in shown or name.endswith("_stddev")]
        return " ".join([*filter(None, [_of_columns(kept, promise, ONE_DEVIATION)]), *more])
    texts = [of_each_row(promise, "Between")]
    if "smoothed" in shown:
        of_counts = "Smoothed: estimates from several windows, by a model in which counts stay near a level."
        texts.insert(0, of_counts)
        texts[1] = of_each_row(promise, "Between, by this model")
    if "sum" in shown:
        texts.append(ONE_DEVIATION)
    return " ".join([*texts, *more])


def of_each_row(promise: Promise | None, what: str) -> str:
    """Return what intervals mean that are 95% for their row, in sentences that begin with what shows them."""
    where = f"{what}: where {held(promise)} are, with probability 95%, each by itself"
    return f"{where}{without_limits(promise)}.{remark(promise)}"


def _of_intervals(promise: Promise | None, name: str) -> str | None:
    """Return what the guarantee file says of intervals under a name; None if it does not."""
    found = None if promise is None else promise.maybe("accuracy", "intervals", name)
    return printable(found) if isinstance(found, str) else None


def percent(promise: Promise | None) -> str:
    """Return the probability with which intervals are right, such as 95%, in words."""
    stated = None if promise is None else promise.maybe("accuracy", "intervals", "probability")
    return f"{100 * stated:.8g}%" if isinstance(stated, float) else UNKNOWN


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
    """Return a row for people: where an interval says nothing there are words in place of its estimate."""
    nothing = hasattr(row, "estimate") and hasattr(row, "lower") and covers_all(row.lower, row.upper, parameters)
    return row._replace(estimate=NOTHING_KNOWN) if nothing else row
