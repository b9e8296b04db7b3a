"""What to look at first in a result: what rose, alerts and flags with their days, and how much limits leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from privstream.pipelines.local_time import Clocks
from privstream.pipelines.plot.picture_spec import of_stream
from privstream.pipelines.questions.risers import before, cells, newest, risers, window_of
from privstream.pipelines.report.result import Result
from privstream.pipelines.sinks.left_out import limits_in_words
from privstream.transforms.rows import ALERT, ENDED, Alert, AlertState, CategoryFlag

MOST = 10
"""Lines of each kind and stream; the tables have all."""


def highlights(result: Result) -> list[str]:
    """Return sentences about what is published, the newest first; none where nothing stands out.

    Privacy: post-processing of rows.
    """
    clocks, found = result.promise.clocks, list(filter(None, [limits_in_words(result.rows)]))
    for stream in sorted({getattr(row, "stream", "") for row in result.rows}):
        rows = of_stream(sorted(result.rows, key=_end), stream)
        of = f"{stream}: " if stream else ""
        if issubclass(result.row_type, Alert):
            found += [of + text for text in _alerts(rows, clocks)]
        elif issubclass(result.row_type, AlertState):
            found += [of + text for text in _states(rows, clocks)]
        elif issubclass(result.row_type, CategoryFlag):
            found += [of + text for text in _flags(rows, clocks)]
        elif result.picture_spec.rising:
            found += [of + text for text in _rises(rows, result, clocks)]
    return found


def _end(row: Any) -> int:
    """Return when the window of a row ends, in microseconds since 1970; 0 without windows."""
    return int(row.window_end.micros) if hasattr(row, "window_end") else 0


def _rises(rows: Sequence[Any], result: Result, clocks: Clocks) -> Iterator[str]:
    """Yield what surely rose in the last window."""
    last = newest(rows)
    against = before(result.parameters.get("rising"))
    for row in risers(last, MOST):
        rise, between, likely = cells(row)
        yield (
            f"{row.item} rose by {rise} ({between}; a rise at all with probability {likely}) "
            f"{window_of(last, clocks)}, against {against}."
        )


def _alerts(rows: Sequence[Alert], clocks: Clocks) -> Iterator[str]:
    """Yield the last alert of each rule, the newest first."""
    last = {row.rule: row for row in rows if row.status != ENDED}
    for row in sorted(last.values(), key=lambda row: -row.window_end.micros)[:MOST]:
        number = "" if row.estimate is None else f", about {row.estimate:,.0f} in its last window"
        begun, last_seen = clocks.moment(row.since.micros), clocks.moment(row.window_end.micros)
        yield f"Alert {row.rule}: from {begun} to {last_seen}{number}."


def _states(rows: Sequence[AlertState], clocks: Clocks) -> Iterator[str]:
    """Yield the last alert of each item of a view, the newest first."""
    last = {row.item: row for row in rows if row.state == ALERT}
    for row in sorted(last.values(), key=_end, reverse=True)[:MOST]:
        item = f" {row.item}" if row.item else ""
        yield f"Alert{item}: from {clocks.moment(row.since.micros)} to {clocks.moment(row.window_end.micros)}."


def _flags(rows: Sequence[CategoryFlag], clocks: Clocks) -> Iterator[str]:
    """Yield when flags went up, the newest first."""
    up: dict[str, int] = {}
    for row in rows:
        if row.raised:
            up.setdefault(row.category, row.window_end.micros)
    for category, micros in sorted(up.items(), key=lambda pair: -pair[1])[:MOST]:
        yield f"The flag of {category} is up since {clocks.moment(micros)}."
