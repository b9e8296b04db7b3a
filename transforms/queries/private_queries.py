"""Private queries: from a data set and a stream of public linear queries to answers under one guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.keyed_counts.answered_queries import AnsweredQueries
from privstream.mechanisms.keyed_counts.counted_queries import CountedQueries, ReleasedCounts
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.sparse_vector.multiplicative_weights import (
    Hypothesis,
    LinearQueries,
    OnlineMultiplicativeWeights,
)
from privstream.transforms.batches import Keyed, KeyedBatch
from privstream.transforms.events.gathering import gather
from privstream.transforms.events.private_transform import ApplyDoFn, PrivateTransform
from privstream.transforms.events.split_stages import SplitEvents
from privstream.transforms.queries.answering import (
    ALL_TIME,
    REFUSED,
    AnswerQueries,
    Answers,
    CountRecords,
    KeyQueries,
    SparseQuery,
    add_up_all,
    decode_counts,
    encode_counts,
    without_digest,
)
from privstream.transforms.queries.parameters import ANSWERS, COUNTS, DIGITS, QueriesParameters
from privstream.transforms.row_types import interval
from privstream.transforms.rows import QueryAnswer
from typing_extensions import override


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
        alone = self.mechanism.errors([query.weights for query in queries], queries=1, beta=OUTSIDE)
        found = zip(queries, bounds.tolist(), alone.tolist(), strict=True)
        return None, [self._row(query, data.counts[query.positions], *errors) for query, *errors in found]

    def _together(self, answered: int) -> int:
        """Return for how many answers bounds hold together: few different numbers, since each needs bounds anew."""
        return self.queries if answered <= self.queries else 1 << (answered - 1).bit_length()

    def _row(self, query: SparseQuery, counts: np.ndarray, bound: float, spread: float) -> QueryAnswer:
        """Return a row that is published; only a sum with weights between 0 and 1 is rounded."""
        whole = bool(np.all(query.weights % 1 == 0))
        value = float(query.weights @ counts)
        estimate, rounding = (value, 0.0) if whole else (round(value, DIGITS), 10.0**-DIGITS / 2)
        lower, upper = interval(estimate, math.ceil(spread + rounding))
        return QueryAnswer(
            query=query.name,
            time=Timestamp(micros=query.time),
            estimate=estimate,
            error_bound=float(math.ceil(bound + rounding)),
            source=COUNTS,
            measurements_left=None,
            lower=float(lower),
            upper=float(upper),
        )


ENTRIES = 2**22  # of queries that are answered at once
NO_BOUND = -1.0


class OverCounts:
    """What methods share whose answers are made of exact counts."""

    def take(self, counts: np.ndarray) -> np.ndarray:
        """Keep the counts as they are."""
        return counts

    def pack(self, data: np.ndarray) -> bytes:
        """Encode the counts."""
        return encode_counts(data)

    def unpack(self, packed: bytes) -> np.ndarray:
        """Decode the counts."""
        return decode_counts(packed)


@dataclass(frozen=True, eq=False)
class ByAnswers(OverCounts):
    """The method "answers" of `PrivateQueries`: each answer has noise of its own, and there are so many and no more.

    Attributes:
        mechanism: its mechanism.
        noise: of the run.
        error_bound: of all answers, in whole people.
        spread: of any one of them, in 95% of all cases.
    """

    mechanism: AnsweredQueries
    noise: NoiseSource
    error_bound: float
    spread: float

    def initial(self) -> int:
        """Return that nothing has been answered."""
        return self.mechanism.initial_state()

    def snapshot(self, learnt: int) -> bytes:
        """Encode how many have been answered."""
        return self.mechanism.snapshot(learnt)

    def restore(self, snapshot: bytes) -> int:
        """Decode how many have been answered."""
        return self.mechanism.restore(snapshot)

    def answer(
        self, data: np.ndarray, learnt: int, queries: list[SparseQuery], before: int
    ) -> tuple[int, list[QueryAnswer]]:
        """Answer queries as long as there are answers left; refuse the others."""
        some = queries[: self.mechanism.queries - learnt]
        sums = [self.mechanism.exact_sum(query.weights, data[query.positions]) for query in some]
        after, values = self.mechanism.step(learnt, sums, self.noise)
        rows = [
            self._row(query, value, self.mechanism.queries - number)
            for number, (query, value) in enumerate(zip(some, values.tolist(), strict=True), learnt + 1)
        ]
        return after, rows + [self._row(query, None, 0) for query in queries[len(some) :]]

    def _row(self, query: SparseQuery, value: float | None, left: int) -> QueryAnswer:
        """Return a row that is published; without a value it is refused, and says 0."""
        estimate = 0.0 if value is None else round(value, DIGITS) if self.mechanism.fraction else value
        lower, upper = interval(estimate, None if value is None else self.spread)
        return QueryAnswer(
            query=query.name,
            time=Timestamp(micros=query.time),
            estimate=estimate,
            error_bound=NO_BOUND if value is None else self.error_bound,
            source=REFUSED if value is None else ANSWERS,
            measurements_left=left,
            lower=None if lower is None else float(lower),
            upper=None if upper is None else float(upper),
        )


@dataclass(frozen=True, eq=False)
class ByHypothesis(OverCounts):
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


class PrivateQueries(QueriesParameters, PrivateTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def build(self, inputs: Mapping[str, PCollection[Any]], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        data, queries = inputs["events"], inputs["queries"]
        if not data.is_bounded:
            raise ValueError("events must be a bounded collection: all queries are about the same data set")
        size = len(self.domain)
        noise = self.noise.derive("private queries", self.domain.digest, self.selection)
        split = SplitEvents(steps=ALL_TIME, noise=noise, shards=self.shards, domain=self.domain, positions=True)
        keyed_batches = apply_dofn(gather(data, apply_dofn, self.event_fields), split, KeyedBatch)
        counts = (
            keyed_batches
            | "WithoutDigest" >> beam.Map(without_digest).with_output_types(Keyed)
            | "ByPeople" >> beam.GroupByKey()
            | "CountRecords" >> beam.ParDo(CountRecords(size, self.selection, noise)).with_output_types(Keyed)
        )
        asked = apply_dofn(
            queries | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows()),
            KeyQueries(self.domain, not self.real_weights),
            Keyed,
        )
        apart = (
            (add_up_all(counts, size), asked)
            | "DataAndQueries" >> beam.Flatten()
            | "ApartFromOthers" >> beam.Reshuffle()
        )
        return apply_dofn(apart, AnswerQueries(self.answers(noise)), QueryAnswer)

    def answers(self, noise: NoiseSource) -> Answers:
        """Return what answers queries, with the noise of the run."""
        common: dict[str, Any] = {"noise": noise, "queries": self.queries, "beta": self.beta}
        if isinstance(self.mechanism, AnsweredQueries):
            return ByAnswers(
                self.mechanism, noise, *(float(math.ceil(each)) for each in (self.error_bound, self.spread))
            )
        if isinstance(self.mechanism, CountedQueries):
            return ByCounts(self.mechanism, **common)
        return ByHypothesis(self.mechanism, **common)
