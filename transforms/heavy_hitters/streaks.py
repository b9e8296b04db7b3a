"""Since when an item has been reported without a gap, found in what is published."""

from __future__ import annotations

from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.rows import CONTINUES, HeavyHitter


def with_streaks(rows: list[HeavyHitter], before: list[HeavyHitter]) -> list[HeavyHitter]:
    """Let reports go on that were there in the window before.

    Args:
        rows: those of a window, each as if it were the first of its item.
        before: those that were published for the window before.
    """
    since = {(row.stream, row.item): row.since for row in before}
    return [_after(row, since) for row in rows]


def _after(row: HeavyHitter, since: dict[tuple[str, str], Timestamp]) -> HeavyHitter:
    """Return a row that continues a report, if it does."""
    first = since.get((row.stream, row.item))
    return row if first is None else row._replace(since=first, status=CONTINUES)
