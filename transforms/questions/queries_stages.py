"""The data set of private queries, and the stage that answers queries about it in order of event time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.selection.multiplicative_weights import LinearQueries, OnlineMultiplicativeWeights
from privstream.transforms.batches import EventBatch, Keyed, KeyedBatch, first_of_run
from privstream.transforms.counters import count_dropped
from privstream.transforms.people.bounding import SplitEvents, add_counts, encode_counts, last_of_each
from privstream.transforms.questions.queries import BETA, QueriesParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.elements import set_aside, text_of
from privstream.transforms.reading.fields import MISSING, RANGE, TYPE, BrokenRuleError, broken_by
from privstream.transforms.reading.frames import SECONDS_OR_TEXT
from privstream.transforms.reading.times import read_micros
from privstream.transforms.rows import LinearQuery, QueryAnswer
from privstream.transforms.stages import ApplyDoFn, PrivateTransform
from privstream.transforms.timing.clock import ONE_KEY
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

RECORDS, QUERY = b"r", b"q"
"""What is sent to where queries are answered begins with one of these."""

ALL_TIME = Steps(size=2**59, first=0, end=1)
"""One step that contains every time of an event."""


def count_records(element: tuple[bytes, Iterable[tuple[int, bytes]]]) -> Keyed:
    """Per shard of people: take the last record of each person, and count them by item."""
    events = EventBatch.read(batch for _, batch in element[1])
    rows = last_of_each(events.users, events.items, events.times)
    order = np.lexsort((events.items, events.users))
    records = int(first_of_run(events.users[order], events.items[order]).sum())
    count_dropped("items", records, records - len(rows))
    return ONE_KEY, RECORDS + encode_counts(*np.unique(events.items[rows], return_counts=True))


class Asked(NamedTuple):
    """A query, in the order in which queries are answered."""

    time: int  # in microseconds
    name: str
    items: list[int]  # positions in the domain, increasing

    def to_bytes(self) -> bytes:
        """Encode."""
        return json.dumps(self).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Asked:
        """Decode."""
        return cls(*json.loads(data))


class KeyQueries(beam.DoFn):
    """Check queries, and encode them; those that break a rule become dead letters."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    @override
    def process(self, query: Any) -> Iterator[Any]:
        try:
            yield ONE_KEY, QUERY + self._read(query).to_bytes()
        except Exception as error:
            yield set_aside(broken_by(error, "query"), text_of(query), "query", counted_as="queries")

    def _read(self, query: Any) -> Asked:
        """Return a query, or raise with the rule that it breaks."""
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
        return Asked(micros, query.name, sorted(positions.tolist()))


def _is_text(value: Any) -> bool:
    """Tell whether a value is a text, not empty, that can be written in UTF-8."""
    return isinstance(value, str) and value != "" and value.encode(errors="replace").decode() == value


ENTRIES = 2**22  # of queries that are answered at once
NO_BOUND = -1.0
REFUSED = "refused"


class AnswerQueries(beam.DoFn):
    """Answer all queries about all records: in order of time, then name, then content.

    Args:
        queries: number of answers whose bounds hold together.
    """

    def __init__(self, mechanism: OnlineMultiplicativeWeights, noise: NoiseSource, queries: int) -> None:
        self.mechanism, self.noise, self.queries = mechanism, noise, queries
        self.published = Metrics.counter("privstream", "queries_answered")
        self.refused = Metrics.counter("privstream", "queries_refused")

    @override
    def process(self, element: tuple[bytes, Iterable[bytes]]) -> Iterator[QueryAnswer]:
        sent = list(element[1])
        records = add_counts((each[1:] for each in sent if each[:1] == RECORDS), self.mechanism.domain_size)
        rows = self.answer(records, sorted(Asked.from_bytes(each[1:]) for each in sent if each[:1] == QUERY))
        self.published.inc(len(rows))
        self.refused.inc(sum(row.source == REFUSED for row in rows))
        yield from rows

    def answer(self, records: np.ndarray, queries: list[Asked]) -> list[QueryAnswer]:
        """Answer queries in order; the hypothesis changes on the way."""
        rows: list[QueryAnswer] = []
        digest = hashlib.blake2b(b"\n".join(query.to_bytes() for query in queries), digest_size=16).hexdigest()
        noise = self.noise.derive("queries", digest)  # other queries share none of it
        learnt, size = self.mechanism.initial_state(), max(1, ENTRIES // self.mechanism.domain_size)
        while len(rows) < len(queries) and (left := self.mechanism.max_updates - self.mechanism.updates(learnt)):
            some = queries[len(rows) : len(rows) + size]
            table = np.zeros((len(some), self.mechanism.domain_size), np.int64)
            for row, query in zip(table, some, strict=True):
                row[query.items] = 1
            learnt, answers = self.mechanism.step(learnt, LinearQueries(records, table), noise)
            for query, value, measured in zip(some, answers.values.tolist(), answers.measured.tolist(), strict=False):
                left -= measured
                rows.append(self._row(query, value, "measured" if measured else "hypothesis", left, len(rows)))
        law = np.exp(learnt.log_law)
        for query in queries[len(rows) :]:
            value = self.mechanism.records * float(law[query.items].sum())
            rows.append(self._row(query, value, REFUSED, 0, len(rows)))
        return rows

    def _row(self, query: Asked, value: float, source: str, left: int, before: int) -> QueryAnswer:
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


class PrivateQueries(QueriesParameters, PrivateTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def build(self, inputs: Mapping[str, PCollection[Any]], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        for name, given in inputs.items():
            if not given.is_bounded:
                raise ValueError(f"{name} must be a bounded collection: all queries are about the same data set")
        noise = self.noise.derive("private queries", self.domain.digest)
        split = SplitEvents(steps=ALL_TIME, noise=noise, shards=self.shards, domain=self.domain, positions=True)
        records = (
            apply_dofn(self.read(inputs["events"], apply_dofn), split, KeyedBatch)
            | "ByPeople" >> beam.GroupByKey()
            | "CountRecords" >> beam.Map(count_records).with_output_types(Keyed)
        )
        in_one = inputs["queries"] | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows())
        queries = apply_dofn(in_one, KeyQueries(self.domain), Keyed)
        together = (records, queries) | "RecordsAndQueries" >> beam.Flatten() | "Together" >> beam.GroupByKey()
        return apply_dofn(together, AnswerQueries(self.mechanism, noise, self.queries), QueryAnswer)
