"""Answers linear queries in order of event time: the stage that keeps the data set and the hypothesis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import MAGIC, pack, unpack
from privstream.mechanisms.sparse_vector.multiplicative_weights import (
    Hypothesis,
    LinearQueries,
    OnlineMultiplicativeWeights,
)
from privstream.transforms.batches import Keyed
from privstream.transforms.events.broken_rule import MISSING, RANGE, TYPE, BrokenRuleError, broken_by
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter, set_aside, text_of
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.times import micros_of
from privstream.transforms.queries.counting import ONE_KEY, decode_counts, encode_counts
from privstream.transforms.rows import LinearQuery, QueryAnswer
from privstream.transforms.timing.keyed_state import NOTHING, Cells, KeyedState, Progress, declare_states
from privstream.transforms.timing.on_time_markers import NO_TIME
from privstream.transforms.timing.steps import MILLISECOND

QUERY = b"q"
ENTRIES = 2**22  # of queries that are answered at once
NO_BOUND = -1.0
LATE = "time must not be before that at which the query came, or of a query that has been answered"


@dataclass(frozen=True, eq=False)
class SparseQuery:
    """A query on positions in the domain; weights elsewhere are 0."""

    name: str
    time: int
    positions: np.ndarray
    weights: np.ndarray

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack("query", 1, vars(self) | {"name": self.name.encode()})

    @classmethod
    def from_bytes(cls, data: bytes) -> SparseQuery:
        """Decode."""
        fields: dict[str, Any] = unpack("query", 1, data)
        return cls(**fields | {"name": fields["name"].decode()})

    @property
    def due(self) -> int:
        """When it is answered: the first whole millisecond at which no earlier query can come any more."""
        return (self.time // MILLISECOND + 1) * MILLISECOND

    def late(self) -> DeadLetter:
        """Return its dead letter when it comes too late."""
        return DeadLetter(LATE, "late query", Timestamp(micros=self.time).to_rfc3339(), self.name)


class KeyQueries(beam.DoFn):
    """Check queries, and encode them; those that break a rule become dead letters.

    A query whose time is before its timestamp, which says when it came, is late. By what has been answered alone, a run
    that goes back to a checkpoint, and meets many queries at once, would take one that had been late, and answer others
    anew.
    """

    def __init__(self, domain: Domain, whole: bool) -> None:
        self.domain = domain
        self.whole = whole
        self.late = Metrics.counter("privstream", "queries_late")

    def process(self, query: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Encode one query; a timestamp at the end of time says nothing."""
        try:
            read = self._read(query)
        except Exception as error:
            yield set_aside(broken_by(error, "query"), text_of(query), "query", counter="queries")
            return
        if read.due <= timestamp.micros and timestamp < NO_TIME:
            self.late.inc()
            yield TaggedOutput(DEAD_LETTERS, read.late())
        else:
            yield ONE_KEY, QUERY + read.to_bytes()

    def _read(self, query: Any) -> SparseQuery:
        """Return a query by positions, or raise with the rule that it breaks."""
        for name in LinearQuery._fields:
            if not hasattr(query, name):
                raise BrokenRuleError(name, MISSING, f"query must have a field {name}")
        if not isinstance(query.name, str) or not query.name or not _is_unicode(query.name):
            raise BrokenRuleError("name", TYPE, "name must be text, not empty")
        micros = micros_of(query.time)
        for name in ("items", "weights"):
            if isinstance(getattr(query, name), str | bytes) or not isinstance(getattr(query, name), Iterable):
                raise BrokenRuleError(name, TYPE, f"{name} must be a list, got {type(getattr(query, name)).__name__}")
        items, weights = list(query.items), list(query.weights)
        if not items or not all(isinstance(item, str) for item in items) or len(set(items)) < len(items):
            raise BrokenRuleError("items", TYPE, "items must be distinct texts, at least one")
        if not all(map(_is_unicode, items)) or not all(
            self.domain.contains(texts := pa.array(items, pa.string())).to_pylist()
        ):
            raise BrokenRuleError("items", RANGE, "items must be in the domain")
        if weights and len(weights) != len(items):
            raise BrokenRuleError("weights", RANGE, "weights must be as many as items, or none")
        numbers = np.array([_weight(weight) for weight in weights]) if weights else np.ones(len(items))
        if self.whole and not np.all(numbers % 1 == 0):
            raise BrokenRuleError("weights", RANGE, "weights must be 0 or 1 without real_weights")
        return SparseQuery(query.name, micros, self.domain.positions(texts), numbers)


def _weight(weight: Any) -> float:
    if (
        isinstance(weight, bool)
        or not isinstance(weight, int | float | np.integer | np.floating)
        or not 0 <= weight <= 1
    ):
        raise BrokenRuleError("weights", RANGE, "weights must be numbers in [0, 1]")
    return float(weight)


def _is_unicode(text: str) -> bool:
    """Tell whether a text can be written in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class Answering:
    """What is remembered.

    Attributes:
        counts: the data set, int64, or None before it has come.
        hypothesis: what the answers have taught so far.
        answered: number of queries answered.
    """

    counts: np.ndarray | None
    hypothesis: Hypothesis
    answered: int = 0


class AnswerQueries(beam.DoFn):
    """Keep the data set, and answer queries when their time has come. Steps are milliseconds.

    Queries that come before the data wait for it.
    """

    def __init__(
        self, *, mechanism: OnlineMultiplicativeWeights, noise: NoiseSource, queries: int, beta: float
    ) -> None:
        self.mechanism = mechanism
        self.noise = noise
        self.queries = queries
        self.beta = beta
        self.keys = KeyedState(self)
        self.late = Metrics.counter("privstream", "queries_late")
        self.answered = Metrics.counter("privstream", "queries_answered")
        self.refused = Metrics.counter("privstream", "queries_refused")

    def step_of(self, record: bytes) -> int:
        """Return the step at which a query is answered."""
        return SparseQuery.from_bytes(record).due // MILLISECOND

    def decode(self, key: bytes, segments: list[bytes]) -> Answering:
        """Read the data set, and the newest hypothesis after it."""
        counts = decode_counts(segments[0]) if segments else None
        if len(segments) < 2:
            return Answering(counts, self.mechanism.initial_state())
        fields: dict[str, Any] = unpack("answering", 1, segments[-1])
        return Answering(counts, self.mechanism.restore(fields["hypothesis"]), fields["answered"])

    def encode(self, state: Answering) -> list[bytes]:
        """Write the data set and the hypothesis."""
        return [] if state.counts is None else [encode_counts(state.counts), self._learnt(state)]

    def keep(self, element: Keyed, cells: Cells, stamp: Timestamp | None = None) -> Iterator[Any]:
        """Keep the data set, or a query until its time has come."""
        key, data = element
        if data[: len(MAGIC)] == MAGIC:
            self._keep_data(key, data, cells)
            return
        query, progress = SparseQuery.from_bytes(data[1:]), Progress.from_bytes(cells.progress.read())
        if query.due // MILLISECOND <= progress.handled:
            self.late.inc()
            yield TaggedOutput(DEAD_LETTERS, query.late())
        else:
            self.keys.wait(key, data[1:], progress, cells)
            cells.due.set(Timestamp(micros=query.due), dynamic_timer_tag=str(query.due))

    def _keep_data(self, key: bytes, data: bytes, cells: Cells) -> None:
        """Keep the data set, and set the timers of queries that wait for it anew."""
        decoded = self.keys.open(key, cells)
        if decoded.state.counts is not None:
            raise ValueError("data must come once")
        decoded.state = replace(decoded.state, counts=decode_counts(data))
        self.keys.append(decoded, data, cells)
        self.keys.close(key, decoded, cells)
        for step in decoded.steps:
            due = step * MILLISECOND
            cells.due.set(Timestamp(micros=due), dynamic_timer_tag=str(due))

    def tick(self, key: bytes, time: Timestamp, cells: Cells) -> Iterator[Any]:
        """Answer the queries that are due, in order of time, name and content."""
        decoded = self.keys.open(key, cells)
        last = time.micros // MILLISECOND if decoded.state.counts is not None else NOTHING
        records = [record for _, found in decoded.take_until(last) for record in found]
        if not records:
            self.keys.cache(key, decoded)
            return
        pairs = [(SparseQuery.from_bytes(record), record) for record in records]
        queries = [query for query, _ in sorted(pairs, key=lambda pair: (pair[0].time, pair[0].name, pair[1]))]
        before = decoded.state
        hypothesis, rows = self._answer(before.hypothesis, before.counts, queries, before.answered)
        yield from (
            TimestampedValue(row, Timestamp(micros=query.due)) for row, query in zip(rows, queries, strict=True)
        )
        decoded.state = replace(before, hypothesis=hypothesis, answered=before.answered + len(queries))
        self.keys.append(decoded, self._learnt(decoded.state), cells)
        self.keys.close(key, decoded, cells)

    def _learnt(self, state: Answering) -> bytes:
        """Encode what changes with answers."""
        fields: dict[str, Any] = {"hypothesis": self.mechanism.snapshot(state.hypothesis), "answered": state.answered}
        return pack("answering", 1, fields)

    def _answer(
        self, hypothesis: Hypothesis, counts: Any, queries: list[SparseQuery], before: int
    ) -> tuple[Hypothesis, list[QueryAnswer]]:
        """Answer queries in order; the hypothesis changes on the way."""
        rows: list[QueryAnswer] = []
        size = max(1, ENTRIES // self.mechanism.domain_size)
        for start in range(0, len(queries), size):
            some = queries[start : start + size]
            while some and (left := self._left(hypothesis)):
                table = self._table(some)
                used = left
                hypothesis, answers = self.mechanism.step(hypothesis, LinearQueries(counts, table), self.noise)
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
                    rows.append(self._row(query, value, "refused", 0, before + len(rows)))
                self.refused.inc(len(some))
        self.answered.inc(len(queries))
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
        if source == "refused":
            return NO_BOUND
        bound = self.mechanism.accuracy(max(self.queries, before + 1), self.beta) + rounding
        if source == "measured":
            bound -= self.mechanism.alpha * self.mechanism.records
        return float(math.ceil(bound))


declare_states(AnswerQueries, "answer_queries")
