"""Answers that are sums of noisy counts, which are released once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.keyed_counts.counted_queries import CountedQueries, ReleasedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.queries.answering import SparseQuery
from privstream.transforms.rows import QueryAnswer

COUNTS = "counts"
DIGITS = 1
"""Of an answer that is no whole number."""


@dataclass(frozen=True, eq=False)
class ByCounts:
    """The method "counts" of `PrivateQueries`: what is kept of the data has noise already, and nothing is learnt.

    Attributes:
        mechanism: its mechanism.
        noise: of the run.
        queries: number of answers whose bounds hold together,
        beta: but with this probability.
    """

    mechanism: CountedQueries
    noise: NoiseSource
    queries: int
    beta: float

    def take(self, counts: np.ndarray) -> ReleasedCounts:
        """Add noise."""
        return self.mechanism.release(counts, self.noise)

    def pack(self, data: ReleasedCounts) -> bytes:
        """Encode the noisy counts."""
        return self.mechanism.snapshot(data)

    def unpack(self, packed: bytes) -> ReleasedCounts:
        """Decode the noisy counts."""
        return self.mechanism.restore(packed)

    def initial(self) -> None:
        """Know nothing."""

    def snapshot(self, learnt: None) -> bytes:
        """Encode nothing."""
        return b""

    def restore(self, snapshot: bytes) -> None:
        """Decode nothing."""

    def answer(
        self, data: ReleasedCounts, learnt: None, queries: list[SparseQuery], before: int
    ) -> tuple[None, list[QueryAnswer]]:
        """Answer queries."""
        bounds = self.mechanism.errors(
            [query.weights for query in queries], queries=self._together(before + len(queries)), beta=self.beta
        )
        pairs = zip(queries, bounds.tolist(), strict=True)
        return None, [self._row(query, data.counts[query.positions], bound) for query, bound in pairs]

    def _together(self, answered: int) -> int:
        """Return for how many answers bounds hold together: few different numbers, since each needs bounds anew."""
        return self.queries if answered <= self.queries else 1 << (answered - 1).bit_length()

    def _row(self, query: SparseQuery, counts: np.ndarray, bound: float) -> QueryAnswer:
        """Return a row that is published; only a sum with weights between 0 and 1 is rounded."""
        whole = bool(np.all(query.weights % 1 == 0))
        value = float(query.weights @ counts)
        return QueryAnswer(
            query=query.name,
            time=Timestamp(micros=query.time),
            estimate=value if whole else round(value, DIGITS),
            error_bound=float(math.ceil(bound if whole else bound + 10.0**-DIGITS / 2)),
            source=COUNTS,
            measurements_left=None,
        )
