"""Questions about one data set, answered once: the limits that suit its people, and queries in an order."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, cast

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import OUTSIDE, Accuracy
from privstream.mechanisms.arrays import Integers
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.limits.contributions import ContributionHistogram, NoisyHistogram
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.selection.multiplicative_weights import LinearQueries
from privstream.transforms.batches import EventBatch, Keyed, KeyedBatch, StepKey, first_of_run, shard_key
from privstream.transforms.counters import count_dropped, counter
from privstream.transforms.parameters import within
from privstream.transforms.people.bounding import SplitEvents, add_counts, encode_counts, last_of_each
from privstream.transforms.questions.numbers import QueriesParameters
from privstream.transforms.row_types import interval
from privstream.transforms.rows import LimitShare, QueryAnswer
from privstream.transforms.stages import ApplyDoFn, PrivateTransform
from privstream.transforms.timing.step_fn import ONE_KEY, WithClock
from privstream.transforms.timing.steps import Length, Moment, Steps
from typing_extensions import override

Waiting = tuple[bytes, bytes]
"""Encoded events of a shard of people, with their `StepKey`."""

ALL_TIME = Steps(size=2**59, first=0, end=1)
"""One step that contains every time of an event."""


def by_people(batch: KeyedBatch) -> tuple[bytes, Waiting]:
    """Return events under the key of their people, whatever their window."""
    place, (_, data) = batch
    return shard_key(StepKey.from_bytes(place).shard), (place, data)


class DataSetTransform(PrivateTransform):
    """Events of input that ends in; rows about all of them out, once, also where there are none."""

    row_type: type
    counter: str
    steps: Steps

    @property
    @abstractmethod
    def cells(self) -> int:
        """How many numbers are counted."""

    @abstractmethod
    def tally(self, found: Iterable[Waiting]) -> Integers:
        """Return what a shard of people counts for: a sum over functions of each person's own events."""

    @abstractmethod
    def rows(self, counts: Integers) -> list[Any]:
        """Return what is published, given what all people count for."""

    @abstractmethod
    def _splitter(self) -> SplitEvents:
        """Return the stage that splits events by shards of people."""

    @override
    def build(self, events: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        if not events.is_bounded:
            raise ValueError("events must be a bounded collection: rows are about all of them")
        total = (
            apply_dofn(self.read(events, apply_dofn), self._splitter(), KeyedBatch)
            | "ByPeople" >> beam.Map(by_people).with_output_types(tuple[bytes, Waiting])
            | "OfShards" >> beam.GroupByKey()
            | "Tally" >> beam.MapTuple(self._tallied).with_output_types(Keyed)
            | "Begin" >> WithClock(self.steps)
            | "Together" >> beam.GroupByKey()
        )
        rows = beam.FlatMapTuple(self._rows).with_output_types(self.row_type)
        return cast(PCollection[Any], total | "Publish" >> rows)

    def _tallied(self, _: bytes, found: Iterable[Waiting]) -> Keyed:
        counts = self.tally(found)
        cells = np.flatnonzero(counts)
        return ONE_KEY, encode_counts(cells, counts[cells])

    def _rows(self, _: bytes, tallies: Iterable[bytes]) -> list[Any]:
        published = self.rows(add_counts(filter(None, tallies), self.cells))
        counter(self.counter).inc(len(published))
        return published


class SuggestLimits(DataSetTransform):
    """Publish how many contributions people have, items in windows, and what each limit would keep and find.

    Events of input that ends in, `LimitShare` rows out, once. Args: see `Parameters` and `privstream suggest --help`.

    Privacy:
        Unit: one person over all that is read, added or removed. (epsilon, 0): `guarantee`. Each person is in one cell,
        whatever he or she does; one beyond the grid is in its last cell. The rest is reckoned from the published
        numbers. Public: all arguments but `noise`.

    Accuracy:
        Each interval alone holds the truth with probability 0.95; estimated shares are about the people who can be
        seen. At most 65,536 contributions count per person.

    Source: derived here, docs/proofs/limits.md.
    """

    mechanism: ContributionHistogram
    row_type, counter = LimitShare, "limits_published"

    def __init__(
        self,
        *,
        window: Length,
        start: Moment,
        end: Moment,
        noise: NoiseSource,
        epsilon: float = 0.05,
        for_epsilon: float = 1.0,
        delta: float = 1e-6,
        shards: int = 8,
    ) -> None:
        super().__init__(noise, shards)
        self.steps = Steps.of(window=window, start=start, end=end)
        self.for_epsilon = checks.positive("for_epsilon", for_epsilon)
        self.delta = checks.probability("delta", delta)
        self.mechanism = ContributionHistogram(epsilon)
        self.noise = noise.derive("limits", self.steps.label)
        _ = self.later_run(1)  # an epsilon or a delta with which counts cannot run is refused now

    @property
    @override
    def promise(self) -> PrivacyGuarantee:
        return within(self.mechanism.guarantee, (), *self.mechanism.guarantee.limits)

    @property
    @override
    def accuracy(self) -> Accuracy:
        scale = self.mechanism.law.scale
        claim = f"Fewer than some {8 * scale:,.0f} people with similar numbers of contributions do not show."
        return Accuracy(error=scale, failure_probability=OUTSIDE, claim=claim, numbers={"noise_scale": scale})

    @property
    @override
    def cells(self) -> int:
        return self.mechanism.cells

    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(steps=self.steps, noise=self.noise, shards=self.shards)

    @override
    def tally(self, found: Iterable[Waiting]) -> Integers:
        parts = [np.empty((3, 0), np.uint64)]
        for place, data in found:
            events = EventBatch.read([data])
            steps = np.full(len(events.users), StepKey.from_bytes(place).step).astype(np.uint64)
            parts.append(np.stack([events.users, events.items, steps]))
        rows = np.concatenate(parts, axis=1)
        rows = rows[:, np.lexsort(rows[::-1])]
        users = rows[0, first_of_run(*rows)]  # one for each contribution
        contributions = np.diff(np.append(np.flatnonzero(first_of_run(users)), len(users)))
        return self.mechanism.tally(contributions)

    @override
    def rows(self, counts: Integers) -> list[LimitShare]:
        mechanism = self.mechanism
        found = NoisyHistogram(mechanism.edges, mechanism.release(counts, self.noise), mechanism.law.scale)
        best = found.best_limit(lambda limit: self.later_run(limit).stddev(1))
        rows = [self._row(found, cell, best) for cell in found.seen if cell < len(found.edges)]
        start = min(found.seen.stop, len(found.edges))
        rest = found.in_cells(range(start, mechanism.cells))
        above = float(found.edges[start - 1]) if start else 0.0
        return [*rows, LimitShare(above, None, *rest, None, None, None, None, None, None, "")]

    def later_run(self, limit: int) -> FoundKeys:
        """Return the counts of the later run under a limit, which may drop something."""
        windows = self.steps.count or 1
        made = FoundKeys(epsilon=self.for_epsilon, delta=self.delta, horizon=windows, contributions=limit)
        return made.with_dropped_share(math.inf)

    def _row(self, found: NoisyHistogram, cell: int, best: int | None) -> LimitShare:
        """Return the row of a cell in which people can be seen."""
        limit, run = found.edges[cell], self.later_run(found.edges[cell])
        kept, lower, upper = (round(part, 4) for part in found.kept(cell))
        return LimitShare(
            float(found.edges[cell - 1]) if cell else 0.0,
            float(limit),
            *found.in_cells(range(cell, cell + 1)),
            kept,
            lower,
            upper,
            stddev=round(run.stddev(1), 1),
            found_in_one=round(run.people_needed(1)),
            found_in_all=round(run.people_needed(run.horizon)),
            suggested=f"--max-contributions {limit}" if limit == best else "",
        )


ENTRIES = 2**22  # of queries that are answered at once
NO_BOUND = -1.0
REFUSED = "refused"


class PrivateQueries(QueriesParameters, DataSetTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type, counter, steps = QueryAnswer, "queries_answered", ALL_TIME

    @property
    @override
    def cells(self) -> int:
        return len(self.domain)

    @override
    def _splitter(self) -> SplitEvents:
        return SplitEvents(steps=ALL_TIME, noise=self.noise, shards=self.shards, domain=self.domain, positions=True)

    @override
    def tally(self, found: Iterable[Waiting]) -> Integers:
        events = EventBatch.read(batch for _, batch in found)
        rows = last_of_each(events.users, events.items, events.times)
        order = np.lexsort((events.items, events.users))
        records = int(first_of_run(events.users[order], events.items[order]).sum())
        count_dropped("records", records, records - len(rows))
        return np.bincount(events.items[rows].astype(np.int64), minlength=self.cells)

    @override
    def rows(self, counts: Integers) -> list[QueryAnswer]:
        """Answer queries in order; the hypothesis changes on the way."""
        made, rows = self.mechanism, list[QueryAnswer]()
        learnt, left, size = made.initial_state(), made.max_updates, max(1, ENTRIES // self.cells)
        while left and (some := self.positions[len(rows) : len(rows) + size]):
            table = np.zeros((len(some), self.cells), np.int64)
            for row, items in zip(table, some, strict=True):
                row[list(items)] = 1
            learnt, answers = made.step(learnt, LinearQueries(counts, table), self.noise)
            for value, measured in zip(answers.values.tolist(), answers.measured.tolist(), strict=True):
                left -= measured
                source = "measured" if measured else "guess" if left == made.max_updates else "hypothesis"
                rows.append(self._row(len(rows), value, source, left))
        counter("queries_refused").inc(len(self.queries) - len(rows))
        law = np.exp(learnt.log_law)
        for number in range(len(rows), len(self.queries)):
            rows.append(self._row(number, made.records * float(law[list(self.positions[number])].sum()), REFUSED, 0))
        return rows

    def _row(self, number: int, value: float, source: str, left: int) -> QueryAnswer:
        """Return a row that is published; what the hypothesis says is rounded. A refused one has no error bound."""
        measured = source == "measured"
        tested = self.mechanism.alpha * self.mechanism.records * measured
        bound = NO_BOUND if source == REFUSED else float(math.ceil(self.error_bound - tested + 0.05))
        estimate = value if measured else round(value, 1)
        law = DiscreteLaplace(self.mechanism.tests.value_scale)
        ends = interval(value, law.tail_quantile(OUTSIDE / 2) if measured else None)
        return QueryAnswer(number + 1, self.queries[number].name, estimate, bound, *ends, source, left)
