"""The largest counts of each window, or those that rose most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

from apache_beam.metrics.metric import Metrics


@dataclass(frozen=True)
class LargestCounts:
    """Chooses the largest counts of a window in each stream; of equal ones, those whose items come first.

    Privacy: post-processing.

    Attributes:
        top: number of counts in a stream.
        rising: whether those that rose most are chosen, and only then, where no rise is known, the largest.
    """

    top: int
    rising: bool = False

    def __call__(self, rows: list[Any]) -> list[Any]:
        """Return the largest of all rows of a window, which are published."""
        chosen = self.among(rows)
        Metrics.counter("privstream", "counts_published").inc(len(chosen))
        return chosen

    def among(self, rows: Iterable[Any]) -> list[Any]:
        """Return the largest of some rows of one window: no others can be among the largest of all."""
        streams: defaultdict[str, list[Any]] = defaultdict(list)
        for row in rows:
            streams[row.stream].append(row)
        return [row for stream in sorted(streams) for row in self._largest(streams[stream])]

    def _largest(self, rows: list[Any]) -> list[Any]:
        """Return the largest of one stream."""
        return nsmallest(self.top, rows, key=self._place)

    def _place(self, row: Any) -> tuple[bool, float, int, str]:
        """Return what sorts a row."""
        known = self.rising and row.rise is not None
        return not known, -row.rise if known else 0.0, -row.count, row.item
