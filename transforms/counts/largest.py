"""The largest counts of each window, or the rows with the largest numbers in other fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

from apache_beam.metrics.metric import Metrics


@dataclass(frozen=True)
class LargestCounts:
    """Chooses the rows of a window with the largest counts in each stream; of equal ones, those whose items come first.

    Privacy: post-processing.

    Attributes:
        top: number of rows in a stream.
        by: the fields that are compared, in this order; rows in which the first is not known are left out.
    """

    top: int
    by: tuple[str, ...] = ("count",)

    def __call__(self, rows: list[Any]) -> list[Any]:
        """Return the largest of all rows of a window, which are published."""
        chosen = self.among(rows)
        Metrics.counter("privstream", "counts_published").inc(len(chosen))
        return chosen

    def among(self, rows: Iterable[Any]) -> list[Any]:
        """Return the largest of some rows of one window: no others can be among the largest of all."""
        streams: defaultdict[str, list[Any]] = defaultdict(list)
        for row in rows:
            if getattr(row, self.by[0]) is not None:
                streams[row.stream].append(row)
        return [row for stream in sorted(streams) for row in self._largest(streams[stream])]

    def _largest(self, rows: list[Any]) -> list[Any]:
        """Return the largest of one stream."""
        return nsmallest(self.top, rows, key=self._place)

    def _place(self, row: Any) -> tuple[Any, ...]:
        """Return what sorts a row."""
        return *(-getattr(row, name) for name in self.by), row.item
