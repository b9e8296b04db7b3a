"""The data set of private queries, and the stage that answers queries about it in order of event time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows, TimestampCombiner
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.selection.multiplicative_weights import (
    Hypothesis,
    LinearQueries,
    OnlineMultiplicativeWeights,
)
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import EventBatch, Keyed, KeyedBatch, first_of_run
from privstream.transforms.people.bound import last_of_each
from privstream.transforms.people.bounding import LimitCounter, SplitEvents, add_counts, encode_counts
from privstream.transforms.questions.queries import BETA, QueriesParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.elements import LOG, set_aside, text_of
from privstream.transforms.reading.fields import (
    DEAD_LETTERS,
    MISSING,
    RANGE,
    TYPE,
    BrokenRuleError,
    DeadLetter,
    broken_by,
)
from privstream.transforms.reading.frames import SECONDS_OR_TEXT
from privstream.transforms.reading.times import read_micros
from privstream.transforms.rows import LinearQuery, QueryAnswer
from privstream.transforms.stages import ApplyDoFn, PrivateTransform
from privstream.transforms.timing.clock import NO_TIME, ONE_KEY, on_clock
from privstream.transforms.timing.step_fn import StepFn, Stepped
from privstream.transforms.timing.steps import MILLISECOND, Steps
from typing_extensions import override

ALL_TIME = Steps(size=2**59, first=0, end=1)
"""One step that contains every time of an event."""


class CountRecords(beam.DoFn):
    """Per shard of people: take the last record of each person, and count them by item."""

    def __init__(self) -> None:
        self.limited = LimitCounter("items")

    @override
    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[Keyed]:
        events = EventBatch.read(element[1])
        rows = last_of_each(events.users, events.items, events.times)
        order = np.lexsort((events.items, events.users))
        records = int(first_of_run(events.users[order], events.items[order]).sum())
        self.limited.add(records, records - len(rows))
        yield ONE_KEY, encode_counts(*np.unique(events.items[rows], return_counts=True))


def add_up_all(counts: PCollection[Keyed], size: int) -> PCollection[Keyed]:
    """Add up the counts of all shards, `size` numbers, also where there are none, and send them to the first step.

    Whether something is published must not depend on the data. The sum has the least time there is, so that no clock
    runs ahead of it.
    """
    nothing = ONE_KEY, encode_counts(np.empty(0), np.empty(0))
    once = counts.pipeline | "Once" >> beam.Impulse()
    none = once | "NoRecords" >> beam.Map(lambda _: nothing).with_output_types(Keyed)
    total: PCollection[Keyed] = (
        (counts, none)
        | "AllCounts" >> beam.Flatten()
        | "HoldTime" >> beam.WindowInto(GlobalWindows(), timestamp_combiner=TimestampCombiner.OUTPUT_AT_EARLIEST)
        | "Together" >> beam.GroupByKey()
        | "DataFirst" >> beam.Map(data_first, size).with_output_types(Keyed)
    )
    return total


def data_first(element: tuple[bytes, Iterable[bytes]], size: int) -> Keyed:
    """Add up the counts of all shards, as the batch of the first step."""
    assert MOMENTS.first is not None
    return on_clock(MOMENTS.first, encode_counts(np.arange(size), add_counts(element[1], size)))


MOMENTS = Steps(size=MILLISECOND, first=-(1 << 53))
"""Steps of a millisecond; the data come in the first one, before all queries."""

REFUSED = "refused"
LATE = "time must not be before that at which the query came, or of a query that has been answered"


@dataclass(frozen=True, eq=False)
class SparseQuery:
    """A query on positions in the domain."""

    name: str
    time: int
    positions: np.ndarray

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack("query", 1, vars(self) | {"name": self.name.encode()})

    @classmethod
    def from_bytes(cls, data: bytes) -> SparseQuery:
        """Decode."""
        fields: dict[str, Any] = unpack("query", 1, data)
        return cls(**fields | {"name": fields["name"].decode()})

    @property
    def step(self) -> int:
        """The millisecond after which it is answered: no earlier query can come any more."""
        return self.time // MILLISECOND

    def late(self) -> DeadLetter:
        """Return its dead letter when it comes too late, and log that."""
        LOG.add(Counter([LATE]))
        return DeadLetter(LATE, "late query", Timestamp(micros=self.time).to_rfc3339(), self.name)


class KeyQueries(beam.DoFn):
    """Check queries, and encode them; those that break a rule become dead letters.

    A query whose time is before its timestamp, which says when it came, is late. By what has been answered alone, a run
    that goes back to a checkpoint, and meets many queries at once, would take one that had been late, and answer others
    anew.
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.late = Metrics.counter("privstream", "queries_late")

    @override
    def process(self, query: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        try:
            read = self._read(query)
        except Exception as error:
            rule = broken_by(error, "query")
            LOG.add(Counter([str(rule)]))
            yield set_aside(rule, text_of(query), "query", counted_as="queries")
            return
        if MOMENTS.decision_time(read.step) <= timestamp < NO_TIME:
            self.late.inc()
            yield TaggedOutput(DEAD_LETTERS, read.late())
        else:
            yield on_clock(read.step, read.to_bytes())

    def _read(self, query: Any) -> SparseQuery:
        """Return a query by positions, or raise with the rule that it breaks."""
        for name in LinearQuery._fields:
            if not hasattr(query, name):
                raise BrokenRuleError(name, MISSING, f"query must have a field {name}")
        if not _is_text(query.name):
            raise BrokenRuleError("name", TYPE, "name must be text, not empty")
        micros = read_micros("time", query.time, SECONDS_OR_TEXT)
        if isinstance(query.items, str | bytes) or not isinstance(query.items, Iterable):
            raise BrokenRuleError("items", TYPE, f"items must be a list, got {type(query.items).__name__}")
        items = list(query.items)
        if not items or not all(map(_is_text, items)) or len(set(items)) < len(items):
            raise BrokenRuleError("items", TYPE, "items must be distinct texts, at least one")
        positions = self.domain.positions(pa.array(items, pa.string()))
        if positions.min() < 0:
            raise BrokenRuleError("items", RANGE, "items must be in the domain")
        return SparseQuery(query.name, micros, positions)


def _is_text(value: Any) -> bool:
    """Tell whether a value is a text, not empty, that can be written in UTF-8."""
    return isinstance(value, str) and value != "" and value.encode(errors="replace").decode() == value


ENTRIES = 2**22  # of queries that are answered at once
NO_BOUND = -1.0


@dataclass(frozen=True, eq=False)
class Answering:
    """Counts of records, int64, or None before they have come; what answers have taught so far; how many there were."""

    data: Any
    learnt: Any
    answered: int = 0


class AnswerQueries(StepFn, state="answer_queries"):
    """Keep the data set, and answer queries when their time has come, in order of time, name and content.

    The log has the data set, and the newest of what was learnt after it.
    """

    every = False
    mechanism: OnlineMultiplicativeWeights
    queries: int
    """Number of answers whose bounds hold together."""
    counter = "queries_answered"
    late = Metrics.counter("privstream", "queries_late")
    refused = Metrics.counter("privstream", "queries_refused")

    @override
    def initial(self, key: bytes) -> Answering:
        return Answering(None, self.mechanism.initial_state())

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Answering:
        if not segments:
            return self.initial(key)
        data = add_counts(segments[:1], self.mechanism.domain_size)
        fields: dict[str, Any] = unpack("answering", 1, segments[-1])
        return Answering(data, self.mechanism.restore(fields["hypothesis"]), fields["answered"])

    @override
    def encode(self, state: Answering) -> list[bytes]:
        return [encode_counts(np.arange(len(state.data)), state.data), self._learnt(state)]

    @override
    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        if step == self.steps.first:
            raise ValueError("data must come once, and before all queries")
        self.late.inc()
        yield TaggedOutput(DEAD_LETTERS, SparseQuery.from_bytes(batch).late())

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Answering) -> Stepped:
        if step == self.steps.first:
            (data,) = batches  # a second data set is refused
            return Stepped(replace(state, data=add_counts([data], self.mechanism.domain_size)))
        if state.data is None:
            raise ValueError("data must come before all queries")
        queries = sorted(map(SparseQuery.from_bytes, batches), key=attrgetter("time", "name"))
        learnt, rows = self.answer(state.data, state.learnt, queries, state.answered)
        self.published.inc(len(rows))
        self.refused.inc(sum(row.source == REFUSED for row in rows))
        after = replace(state, learnt=learnt, answered=state.answered + len(queries))
        return Stepped(after, rows, lambda: self._learnt(after))

    def answer(
        self, data: np.ndarray, learnt: Hypothesis, queries: list[SparseQuery], before: int
    ) -> tuple[Hypothesis, list[QueryAnswer]]:
        """Answer queries in order; the hypothesis changes on the way."""
        rows: list[QueryAnswer] = []
        size = max(1, ENTRIES // self.mechanism.domain_size)
        while len(rows) < len(queries) and (left := self.mechanism.max_updates - self.mechanism.updates(learnt)):
            some = queries[len(rows) : len(rows) + size]
            table = np.zeros((len(some), self.mechanism.domain_size), np.int64)
            for row, query in zip(table, some, strict=True):
                row[query.positions] = 1
            learnt, answers = self.mechanism.step(learnt, LinearQueries(data, table), self.noise)
            for query, value, measured in zip(some, answers.values.tolist(), answers.measured.tolist(), strict=False):
                left -= measured
                source = "measured" if measured else "hypothesis"
                rows.append(self._row(query, value, source, left, before + len(rows)))
        law = np.exp(learnt.log_law)
        for query in queries[len(rows) :]:
            value = self.mechanism.records * float(law[query.positions].sum())
            rows.append(self._row(query, value, REFUSED, 0, before + len(rows)))
        return learnt, rows

    def _row(self, query: SparseQuery, value: float, source: str, left: int, before: int) -> QueryAnswer:
        """Return a row that is published; what the hypothesis says is rounded. A refused one has no error bound."""
        bound = NO_BOUND
        if source != REFUSED:
            bound = self.mechanism.accuracy(max(self.queries, before + 1), BETA)
            bound = math.ceil(bound - self.mechanism.alpha * self.mechanism.records * (source == "measured") + 0.05)
        return QueryAnswer(
            query=query.name,
            time=Timestamp(micros=query.time),
            estimate=value if source == "measured" else round(value, 1),
            error_bound=float(bound),
            source=source,
            measurements_left=left,
        )

    def _learnt(self, state: Answering) -> bytes:
        """Encode what changes with answers."""
        fields: dict[str, Any] = {"hypothesis": self.mechanism.snapshot(state.learnt), "answered": state.answered}
        return pack("answering", 1, fields)


class PrivateQueries(QueriesParameters, PrivateTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def build(self, inputs: Mapping[str, PCollection[Any]], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        data, queries = inputs["events"], inputs["queries"]
        if not data.is_bounded:
            raise ValueError("events must be a bounded collection: all queries are about the same data set")
        size = len(self.domain)
        noise = self.noise.derive("private queries", self.domain.digest)
        split = SplitEvents(steps=ALL_TIME, noise=noise, shards=self.shards, domain=self.domain, positions=True)
        keyed_batches = apply_dofn(self.read(data, apply_dofn), split, KeyedBatch)
        counts = (
            keyed_batches
            | "WithoutNumber" >> beam.Map(lambda one: (one[0], one[1][1])).with_output_types(Keyed)
            | "ByPeople" >> beam.GroupByKey()
            | "CountRecords" >> beam.ParDo(CountRecords()).with_output_types(Keyed)
        )
        in_one = queries | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows())
        asked = apply_dofn(in_one, KeyQueries(self.domain), Keyed)
        apart = (
            (add_up_all(counts, size), asked)
            | "DataAndQueries" >> beam.Flatten()
            | "ApartFromOthers" >> beam.Reshuffle()
        )
        given = {"mechanism": self.mechanism, "noise": noise, "queries": self.queries}
        return apply_dofn(apart, AnswerQueries(steps=MOMENTS, timer_offset=0, **given), QueryAnswer)
