"""Limits by period: which releases are about which time of the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from privstream.pipelines.accounts.entries import Entry

DAY = 86_400 * 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Reach = tuple[float, float]


def name_of(length: str, number: float) -> str:
    """Return what a period is called.

    >>> name_of("year", 2026), name_of("month", 24313), name_of("30d", 682)
    ('2026', '2026-02', '30 days from 2026-01-07')
    """
    if not math.isfinite(number):
        return "any time"
    if length == "year":
        return f"{number:.0f}"
    if length == "month":
        return f"{number // 12:.0f}-{number % 12 + 1:02.0f}"
    days = int(length[:-1])
    return f"{days} days from {(EPOCH + timedelta(days=int(number) * days)).date().isoformat()}"


def reach(length: str, entry: Entry) -> Reach:
    """Return the numbers of the first and the last period that a run is about; infinite where that is not known."""
    first = -math.inf if entry.begin is None else _number(length, entry.begin)
    return first, math.inf if entry.end is None else _number(length, entry.end - 1)


def fullest(
    length: str, entries: Sequence[Entry], within: Reach = (-math.inf, math.inf)
) -> Iterator[tuple[str, list[Entry]]]:
    """Give periods, each with the entries that are about it, so that no other period has more of them.

    Entries begin in all of these periods, or before `within` does: what is about another one is about one of these.
    """
    reaches = [reach(length, entry) for entry in entries]
    for number in sorted(
        {max(first, within[0]) for first, last in reaches if last >= within[0] and first <= within[1]}
    ):
        about = [one for one, (first, last) in zip(entries, reaches, strict=True) if first <= number <= last]
        yield name_of(length, number), about


def _number(length: str, micros: int) -> int:
    """Return the number of the period of a time: years, months since the year 0, or steps of days since 1970."""
    moment = EPOCH + timedelta(microseconds=micros)
    if length == "year":
        return moment.year
    if length == "month":
        return 12 * moment.year + moment.month - 1
    return micros // (int(length[:-1]) * DAY)
