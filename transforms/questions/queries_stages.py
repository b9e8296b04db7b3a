"""The data set of private queries, and the stage that answers queries about it in order of event time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
from privstream.transforms.people.bound import last_of_each
from privstream.transforms.people.bounding import LimitCounter, SplitEvents, add_counts, encode_counts
from privstream.transforms.questions.queries import BETA, QueriesParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.elements import LOG, set_aside, text_of
from privstream.transforms.reading.fields import MISSING, RANGE, TYPE, BrokenRuleError, broken_by
from privstream.transforms.reading.times import micros_of
from privstream.transforms.rows import LinearQuery, QueryAnswer
from privstream.transforms.stages import ApplyDoFn, PrivateTransform
from privstream.transforms.timing.clock import ONE_KEY
from privstream.transforms.timing.steps import Steps
from typing_extensions import override

ALL_TIME = Steps(size=2**59, first=0, end=1)
"""One step that contains every time of an event."""


class CountRecords(beam.DoFn):
    """Per shard of people: take the last record of each person, and count them by item."""

    def __init__(self) -> None:
        self.limited = LimitCounter("items")

    @override
    def process(self, element: tuple[bytes, Iterable[tuple[int, bytes]]]) -> Iterator[Keyed]:
        events = EventBatch.read(batch for _, batch in element[1])
        rows = last_of_each(events.users, events.items, events.times)
        order = np.lexsort((events.items, events.users))
        records = int(first_of_run(events.users[order], events.items[order]).sum())
        self.limited.add(records, records - len(rows))
        yield ONE_KEY, encode_counts(*np.unique(events.items[rows], return_counts=True))


Asked = tuple[int, str, bytes]
"""A query as it is sorted: its time in microseconds, its name, and the positions of its items, encoded."""


class KeyQueries(beam.DoFn):
    """Check queries, and encode them; those that break a rule become dead letters."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    @override
    def process(self, query: Any) -> Iterator[Any]:
        try:
            yield ONE_KEY, self._read(query)
        except Exception as error:
            rule = broken_by(error, "query")
            LOG.add(Counter([str(rule)]))
            yield set_aside(rule, text_of(query), "query", counter="queries")

    def _read(self, query: Any) -> Asked:
        """Return a query, or raise with the rule that it breaks."""
        for name in LinearQuery._fields:
            if not hasattr(query, name):
                raise BrokenRuleError(name, MISSING, f"query must have a field {name}")
        if not _is_text(query.name):
            raise BrokenRuleError("name", TYPE, "name must be text, not empty")
        micros = micros_of(query.time)
        if isinstance(query.items, str | bytes) or not isinstance(query.items, Iterable):
            raise BrokenRuleError("items", TYPE, f"items must be a list, got {type(query.items).__name__}")
        items = list(query.items)
        if not items or not all(map(_is_text, items)) or len(set(items)) < len(items):
            raise BrokenRuleError("items", TYPE, "items must be distinct texts, at least one")
        positions = self.domain.positions(pa.array(items, pa.string()))
        if positions.min() < 0:
            raise BrokenRuleError("items", RANGE, "items must be in the domain")
        return micros, query.name, np.sort(positions).astype("<i8").tobytes()


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
    def process(self, element: tuple[bytes, Mapping[str, Iterable[Any]]]) -> Iterator[QueryAnswer]:
        records = add_counts(element[1]["records"], self.mechanism.domain_size)
        rows = self.answer(records, sorted(element[1]["queries"]))
        self.published.inc(len(rows))
        self.refused.inc(sum(row.source == REFUSED for row in rows))
        yield from rows

    def answer(self, records: np.ndarray, queries: list[Asked]) -> list[QueryAnswer]:
        """Answer queries in order; the hypothesis changes on the way."""
        rows: list[QueryAnswer] = []
        learnt, size = self.mechanism.initial_state(), max(1, ENTRIES // self.mechanism.domain_size)
        while len(rows) < len(queries) and (left := self.mechanism.max_updates - self.mechanism.updates(learnt)):
            some = queries[len(rows) : len(rows) + size]
            table = np.zeros((len(some), self.mechanism.domain_size), np.int64)
            for row, (_, _, items) in zip(table, some, strict=True):
                row[np.frombuffer(items, "<i8")] = 1
            learnt, answers = self.mechanism.step(learnt, LinearQueries(records, table), self.noise)
            for query, value, measured in zip(some, answers.values.tolist(), answers.measured.tolist(), strict=False):
                left -= measured
                rows.append(self._row(query, value, "measured" if measured else "hypothesis", left, len(rows)))
        law = np.exp(learnt.log_law)
        for query in queries[len(rows) :]:
            value = self.mechanism.records * float(law[np.frombuffer(query[2], "<i8")].sum())
            rows.append(self._row(query, value, REFUSED, 0, len(rows)))
        return rows

    def _row(self, query: Asked, value: float, source: str, left: int, before: int) -> QueryAnswer:
        """Return a row that is published; what the hypothesis says is rounded. A refused one has no error bound."""
        bound = NO_BOUND
        if source != REFUSED:
            bound = self.mechanism.accuracy(max(self.queries, before + 1), BETA)
            bound = math.ceil(bound - self.mechanism.alpha * self.mechanism.records * (source == "measured") + 0.05)
        return QueryAnswer(
            query=query[1],
            time=Timestamp(micros=query[0]),
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
            | "CountRecords" >> beam.ParDo(CountRecords()).with_output_types(Keyed)
        )
        in_one = inputs["queries"] | "QueriesInOneWindow" >> beam.WindowInto(GlobalWindows())
        queries = apply_dofn(in_one, KeyQueries(self.domain), tuple[bytes, Asked])
        together = {"records": records, "queries": queries} | "Together" >> beam.CoGroupByKey()
        return apply_dofn(together, AnswerQueries(self.mechanism, noise, self.queries), QueryAnswer)
