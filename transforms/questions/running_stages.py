"""What questions share that publish something after every window: counts of what is listed, and the last stage."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
import pyarrow as pa
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    KeyedBatch,
    Names,
    StepKey,
    encode,
    first_of_run,
    people_key,
)
from privstream.transforms.counters import count_dropped
from privstream.transforms.people.bounding import (
    BoundEvents,
    LimitRows,
    SplitEvents,
    add_counts,
    encode_counts,
    place_in_run,
)
from privstream.transforms.reading.fields import UNREAD
from privstream.transforms.stages import PeopleTransform
from privstream.transforms.timing.clock import ToClock, stepped
from privstream.transforms.timing.step_fn import StepFn
from typing_extensions import override


class CountEvents(SplitEvents):
    """Count what each Arrow batch has, per step: whose events they are is not even read."""

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        _, steps, codes = self.usable(batch)
        cells, counts = np.unique(steps * len(self.domain) + codes, return_counts=True)
        step, columns = np.divmod(cells, len(self.domain))
        starts: list[int] = np.flatnonzero(first_of_run(step)).tolist() if len(step) else []
        for start, end in itertools.pairwise([*starts, len(step)]):
            some = counts[start:end]
            yield StepKey(int(step[start]), 0).to_bytes(), (int(some.sum()), encode_counts(columns[start:end], some))


class BoundCodes(BoundEvents):
    """Per step and shard of people: the codes of each person that count, by shard of people."""

    counted: ClassVar[str]
    """What is limited, as counters have it."""
    limit: int

    @abstractmethod
    def order(self, step: int, events: EventBatch) -> np.ndarray:
        """Return the rows person by person, those that count first: by the person's own events and the noise key."""

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        order = self.order(key.step, events)
        places = place_in_run(events.users, order)
        rows = order[places[order] < self.limit]
        count_dropped(self.counted, len(events.users), len(events.users) - len(rows))
        held = HolderBatch(events.users[rows], events.items[rows], places[rows].astype(np.uint16), Names.none())
        yield people_key(key.shard), stepped(key.step, encode(held))


class RunningAnswers(StepFn):
    """On a public clock: run a mechanism through every window, and make rows of what it releases."""

    row_type: ClassVar[type[Any]]
    listed: Any = ()
    """What is counted, by number."""

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, list[Any]]:
        state, found = self.answer(step, batches, state)
        rows = [self.row_type(*self.steps.bounds(step), *fields) for fields in found]
        self.published.inc(len(rows))
        return state, rows

    def answer(self, step: int, batches: list[bytes], state: Any) -> tuple[Any, Iterable[tuple[Any, ...]]]:
        """Return the state after a step, and the fields of each row behind those of the window."""
        state, found = self.mechanism.step(state, self.given(step, batches), self.noise_of(step))
        return state, self.rows(state, found)

    def given(self, step: int, batches: list[bytes]) -> Any:
        """Return what the mechanism is given: counts, int64, of what is listed."""
        return add_counts(batches, len(self.listed))

    def rows(self, state: Any, found: Any) -> Iterable[tuple[Any, ...]]:
        """Return the fields of rows, given what the mechanism has released, and its state after that."""
        raise NotImplementedError


class ListedTransform(PeopleTransform):
    """Events in; something private about the counts of what is listed, after every window, out.

    Where an event is protected, whose it is is not even read: events are counted at once.
    """

    @property
    @override
    def asked(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"listed": self.domain}

    @override
    def _splitter(self, **given: Any) -> beam.DoFn:
        if self.event_fields.user == UNREAD:
            return CountEvents(steps=self.steps, domain=self.domain)
        return super()._splitter(**given)

    def _bounded(self, in_window: BoundEvents, in_run: int) -> Sequence[beam.DoFn]:
        """Return the stages that bound a person, if one is protected."""
        if self.event_fields.user == UNREAD:
            return (ToClock(),)
        return in_window, LimitRows(steps=self.steps, timer_offset=1, limit=in_run)
