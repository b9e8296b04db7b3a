"""Counters of what is read, set aside and dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Counters = dict[tuple[str, str], int]
"""Counters of a run: by the stage that has counted, and the name."""

SENT, CLOSED = "events_in_windows", "events_in_time"
"""Events sent to windows, and those that were there when the runner closed them: it has dropped the others."""

OF_READING = ": "
"""Separates question and counter in a monitor."""


def counter(name: str, question: str = "") -> Any:
    """Return a counter of Beam, about one of several questions if named; outside of pipelines it counts nothing."""
    from apache_beam.metrics.metric import Metrics  # noqa: PLC0415 - late: plans load fast without Beam

    return Metrics.counter("privstream", f"{question}{OF_READING}{name}" if question else name)


def count_dropped(limit: str, came: int, dropped: int) -> None:
    """Count what comes to a limit, and what it drops: exact, and not for publication."""
    counter(f"{limit}_before_limit").inc(came)
    counter(f"{limit}_over_limit").inc(dropped)


def summed(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add up what was counted under the same name; what was sent to windows and not in time is late."""
    sums: dict[str, int] = {}
    for name, number in found:
        sums[name] = sums.get(name, 0) + number
    if late := sums.get(SENT, 0) - sums.get(CLOSED, 0):
        sums["events_late"] = late
    return sums
