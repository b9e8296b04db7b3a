"""Counters of what is read, set aside and left out: Beam's in pipelines, plain numbers where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Counters = dict[tuple[str, str], int]
"""Counters of a run: by the stage that has counted, and the name."""

SENT, CLOSED = "events_in_windows", "events_in_time"
"""Events sent to windows, and those that were there when the runner closed them: it has dropped the others."""

_COUNTED: ContextVar[dict[str, int] | None] = ContextVar("counted", default=None)


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Let counters that are made in the block add to numbers by name, which it gets."""
    found: dict[str, int] = {}
    token = _COUNTED.set(found)
    try:
        yield found
    finally:
        _COUNTED.reset(token)


class PlainCounter:
    """Adds to a number of others, as a counter of Beam does."""

    def __init__(self, found: dict[str, int], name: str) -> None:
        self._found, self._name = found, name

    def inc(self, number: int = 1) -> None:
        """Count so many."""
        self._found[self._name] = self._found.get(self._name, 0) + number


def counter(name: str) -> Any:
    """Return a counter: that of the block of `counted` in which this is called, or else of Beam."""
    found = _COUNTED.get()
    if found is not None:
        return PlainCounter(found, name)
    from apache_beam.metrics.metric import Metrics  # noqa: PLC0415 - late: what counts by itself needs no Beam

    return Metrics.counter("privstream", name)


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
