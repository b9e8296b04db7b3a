"""Answers linear queries in order of event time: the stage that keeps the data set and the hypothesis."""

from __future__ import annotations

import heapq
import math
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
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
from privstream.transforms.queries.counting import ONE_KEY, decode_counts
from privstream.transforms.rows import LinearQuery, QueryAnswer
from privstream.transforms.timing.receipts import NO_TIME
from privstream.transforms.timing.runner_check import check_state
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


@dataclass(frozen=True)
class Head:
    """The small part of the state.

    Attributes:
        version: random; new whenever any state changes.
        decided: event time, in microseconds, up to which queries have been answered.
        answered: number of queries answered, and
        pending: queries in the bag, and
        handled: how many of them have been answered.
    """

    version: bytes = b""
    decided: int = -1
    answered: int = 0
    pending: int = 0
    handled: int = 0


@dataclass(eq=False)
class Memory:
    """The state, decoded; `waiting` is a heap of due time, query time, name and encoded query."""

    version: bytes
    counts: np.ndarray | None
    hypothesis: Hypothesis
    waiting: list[tuple[int, int, str, bytes]] = field(default_factory=list)

    def add(self, record: bytes) -> None:
        """Add a waiting query."""
        query = SparseQuery.from_bytes(record)
        heapq.heappush(self.waiting, (query.due, query.time, query.name, record))

    def take_until(self, time: int) -> list[SparseQuery]:
        """Take out the queries that are due, in order of time, name and content."""
        taken = []
        while self.waiting and self.waiting[0][0] <= time:
            taken.append(SparseQuery.from_bytes(heapq.heappop(self.waiting)[3]))
        return taken


class AnswerQueries(beam.DoFn):
    """Keep the data set, and answer queries when their time has come.

    Queries that come before the data wait for it. The decoded state is cached under a random version that is written
    with every change, so that a bundle that was rolled back never meets a stale cache.
    """

    PENDING = BagStateSpec("answer_queries_pending", BytesCoder())  # encoded queries that wait, and some answered ones
    COUNTS = ReadModifyWriteStateSpec("answer_queries_counts", BytesCoder())  # the data set
    LEARNT = ReadModifyWriteStateSpec("answer_queries_learnt", BytesCoder())  # snapshot of the hypothesis
    HEAD = ReadModifyWriteStateSpec("answer_queries_head", BytesCoder())  # encoded Head
    DUE = TimerSpec("answer_queries_due", TimeDomain.WATERMARK)  # tagged by due time

    def __init__(
        self, *, mechanism: OnlineMultiplicativeWeights, noise: NoiseSource, queries: int, beta: float
    ) -> None:
        self.mechanism = mechanism
        self.noise = noise
        self.queries = queries
        self.beta = beta
        self.late = Metrics.counter("privstream", "queries_late")
        self.answered = Metrics.counter("privstream", "queries_answered")
        self.refused = Metrics.counter("privstream", "queries_refused")
        self._cache: Memory | None = None

    def process(
        self,
        element: Keyed,
        pending: Any = beam.DoFn.StateParam(PENDING),
        counts: Any = beam.DoFn.StateParam(COUNTS),
        learnt: Any = beam.DoFn.StateParam(LEARNT),
        head: Any = beam.DoFn.StateParam(HEAD),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        """Keep the data set, or a query until its time has come."""
        check_state(head)
        data = element[1]
        now = _read(head)
        memory = self._take(now) or self._load(pending, counts, learnt, now)
        if data[: len(MAGIC)] == MAGIC:
            if memory.counts is not None:
                raise ValueError("data must come once")
            counts.write(data)
            memory.counts = decode_counts(data)
            times = {query[0] for query in memory.waiting}
        else:
            query = SparseQuery.from_bytes(data[1:])
            if query.due <= now.decided:
                self.late.inc()
                yield TaggedOutput(DEAD_LETTERS, query.late())
                self._cache = memory
                return
            pending.add(data[1:])
            memory.add(data[1:])
            now = replace(now, pending=now.pending + 1)
            times = {query.due}
        for time in times:
            due.set(Timestamp(micros=time), dynamic_timer_tag=str(time))
        self._keep(memory, now, head)

    @on_timer(DUE)
    def on_due(
        self,
        time: Any = beam.DoFn.TimestampParam,
        pending: Any = beam.DoFn.StateParam(PENDING),
        counts: Any = beam.DoFn.StateParam(COUNTS),
        learnt: Any = beam.DoFn.StateParam(LEARNT),
        head: Any = beam.DoFn.StateParam(HEAD),
    ) -> Iterator[Any]:
        """Answer the queries that are due; runners may deliver timers in any order."""
        now = _read(head)
        memory = self._take(now) or self._load(pending, counts, learnt, now)
        queries = memory.take_until(time.micros) if memory.counts is not None else []
        if not queries:
            self._cache = memory
            return
        memory.hypothesis, rows = self._answer(memory.hypothesis, memory.counts, queries, now.answered)
        yield from (
            TimestampedValue(row, Timestamp(micros=query.due)) for row, query in zip(rows, queries, strict=True)
        )
        learnt.write(self.mechanism.snapshot(memory.hypothesis))
        now = replace(
            now,
            decided=queries[-1].due,
            answered=now.answered + len(queries),
            handled=now.handled + len(queries),
        )
        if 2 * now.handled >= now.pending:
            pending.clear()
            for query in memory.waiting:
                pending.add(query[3])
            now = replace(now, pending=len(memory.waiting), handled=0)
        self._keep(memory, now, head)

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

    def _take(self, now: Head) -> Memory | None:
        """Take the decoded state out of the cache, if it is the current one; an error leaves nothing cached."""
        memory, self._cache = self._cache, None
        return memory if memory is not None and memory.version == now.version else None

    def _load(self, pending: Any, counts: Any, learnt: Any, now: Head) -> Memory:
        """Decode the state."""
        data, snapshot = counts.read(), learnt.read()
        memory = Memory(
            now.version,
            None if data is None else decode_counts(data),
            self.mechanism.initial_state() if snapshot is None else self.mechanism.restore(snapshot),
        )
        for record in pending.read():
            memory.add(record)
        while memory.waiting and memory.waiting[0][0] <= now.decided:
            heapq.heappop(memory.waiting)
        return memory

    def _keep(self, memory: Memory, now: Head, head: Any) -> None:
        """Write the head under a new version, and cache the decoded state."""
        memory.version = secrets.token_bytes(12)
        head.write(pack("queries head", 1, vars(replace(now, version=memory.version))))
        self._cache = memory


def _read(head: Any) -> Head:
    data = head.read()
    return Head() if data is None else Head(**unpack("queries head", 1, data))  # type: ignore[arg-type]
