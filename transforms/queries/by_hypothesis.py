"""Answers from a hypothesis that learns from its errors, by online multiplicative weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.sparse_vector.multiplicative_weights import (
    Hypothesis,
    LinearQueries,
    OnlineMultiplicativeWeights,
)
from privstream.transforms.queries.answering import REFUSED, SparseQuery
from privstream.transforms.queries.counting import decode_counts, encode_counts
from privstream.transforms.rows import QueryAnswer

ENTRIES = 2**22  # of queries that are answered at once
NO_BOUND = -1.0


@dataclass(frozen=True, eq=False)
class ByHypothesis:
    """The method "multiplicative_weights" of `PrivateQueries`.

    Attributes:
        mechanism: its mechanism.
        noise: of the run.
        queries: number of answers whose bounds hold together,
        beta: but with this probability.
    """

    mechanism: OnlineMultiplicativeWeights
    noise: NoiseSource
    queries: int
    beta: float

    def take(self, counts: np.ndarray) -> np.ndarray:
        """Keep the counts as they are."""
        return counts

    def pack(self, data: np.ndarray) -> bytes:
        """Encode the counts."""
        return encode_counts(data)

    def unpack(self, packed: bytes) -> np.ndarray:
        """Decode the counts."""
        return decode_counts(packed)

    def initial(self) -> Hypothesis:
        """Return the first hypothesis."""
        return self.mechanism.initial_state()

    def snapshot(self, learnt: Hypothesis) -> bytes:
        """Encode a hypothesis."""
        return self.mechanism.snapshot(learnt)

    def restore(self, snapshot: bytes) -> Hypothesis:
        """Decode a hypothesis."""
        return self.mechanism.restore(snapshot)

    def answer(
        self, data: np.ndarray, learnt: Hypothesis, queries: list[SparseQuery], before: int
    ) -> tuple[Hypothesis, list[QueryAnswer]]:
        """Answer queries in order; the hypothesis changes on the way."""
        hypothesis = learnt
        rows: list[QueryAnswer] = []
        size = max(1, ENTRIES // self.mechanism.domain_size)
        for start in range(0, len(queries), size):
            some = queries[start : start + size]
            while some and (left := self._left(hypothesis)):
                table = self._table(some)
                used = left
                hypothesis, answers = self.mechanism.step(hypothesis, LinearQueries(data, table), self.noise)
                for query, value, measured in zip(
                    some, answers.values.tolist(), answers.measured.tolist(), strict=False
                ):
                    used -= measured
                    rows.append(
                        self._row(query, value, "measured" if measured else "hypothesis", used, before + len(rows))
                    )
                some = some[answers.answered :]
            if some:
                law = np.exp(hypothesis.log_law)
                for query in some:
                    value = self.mechanism.records * float(query.weights @ law[query.positions])
                    rows.append(self._row(query, value, REFUSED, 0, before + len(rows)))
        return hypothesis, rows

    def _left(self, hypothesis: Hypothesis) -> int:
        """Return how many more answers may be measured."""
        return self.mechanism.max_updates - self.mechanism.updates(hypothesis)

    def _table(self, queries: list[SparseQuery]) -> np.ndarray:
        """Write queries out over the whole domain."""
        table = np.zeros((len(queries), self.mechanism.domain_size), np.int64 if self.mechanism.integer else np.float64)
        for row, query in zip(table, queries, strict=True):
            row[query.positions] = query.weights
        return table

    def _row(self, query: SparseQuery, value: float, source: str, left: int, before: int) -> QueryAnswer:
        """Return a row that is published; a real number is rounded to about a hundredth of its noise."""
        whole = source == "measured" and self.mechanism.integer
        digits = 2 - math.floor(math.log10(self.mechanism.tests.value_scale)) if source == "measured" else 1
        return QueryAnswer(
            query=query.name,
            time=Timestamp(micros=query.time),
            estimate=value if whole else round(value, digits),
            error_bound=self._error_bound(source, before, 0.0 if whole else 10.0**-digits / 2),
            source=source,
            measurements_left=left,
        )

    def _error_bound(self, source: str, before: int, rounding: float) -> float:
        """Return how wrong an answer is at most, or that there is no bound: of a refused one nothing was tested."""
        if source == REFUSED:
            return NO_BOUND
        bound = self.mechanism.accuracy(max(self.queries, before + 1), self.beta) + rounding
        if source == "measured":
            bound -= self.mechanism.alpha * self.mechanism.records
        return float(math.ceil(bound))
