"""SetCardinality: events of people who come and go in; how many are there now, at the end of every window, out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.continual.cardinality import Cardinalities, CardinalityState
from privstream.mechanisms.sorted_runs import Run, SortedRuns
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    Names,
    StepKey,
    encode,
    first_of_run,
    people_key,
    totals,
)
from privstream.transforms.parameters import Actions
from privstream.transforms.people.bounding import BoundEvents, LimitCounter
from privstream.transforms.questions.cardinality import FOR_EVER, CardinalityParameters, stays
from privstream.transforms.questions.running_stages import RunningAnswers
from privstream.transforms.row_types import CardinalityEstimate, interval
from privstream.transforms.stages import PeopleTransform
from privstream.transforms.timing.clock import on_clock, stepped
from privstream.transforms.timing.step_fn import NEVER, StepFn, Stepped, unchanged
from typing_extensions import override

NO_BOUND = -1
USED_BITS = 17
"""Of a packed number: windows in which a person has counted, up to 65,535, and one more."""


class PublishCardinality(RunningAnswers, state="publish_cardinality"):
    """Publish the estimates of every window."""

    row_type = CardinalityEstimate
    counter = "estimates_published"
    exhausted = Metrics.counter("privstream", "estimates_without_bound")

    @override
    def given(self, step: int, batches: list[bytes]) -> int:
        return sum(CHANGE.unpack(batch)[0] for batch in batches)

    @override
    def rows(self, state: CardinalityState, found: Cardinalities) -> Iterator[tuple[Any, ...]]:
        estimate, bound, exhausted = found
        self.exhausted.inc(int(exhausted))
        spread = self.mechanism.algorithm.spread
        ends = interval(float(estimate), None if exhausted else bound if spread is None else spread)
        people = max(0, estimate)
        noisy = people if spread is None else estimate  # by counts it is unbiased
        yield float(people), *ends, noisy, NO_BOUND if exhausted else bound


ABSENT = 0


@dataclass(frozen=True, eq=False)
class Stays(Run):
    """What is known of distinct people: sixteen bytes a person, encoded too.

    Attributes:
        keys: the people, uint64, shape (n,), strictly increasing.
        values: the step, int64, at whose end each is no longer present; with a limit times 2^17, plus the number of
            windows in which the person counts until then.
    """

    kind = "stays"
    names = ("people", "until")

    @classmethod
    def of(cls, people: np.ndarray, until: np.ndarray) -> Stays:
        """Sort distinct people."""
        order = np.argsort(people)
        return cls(people[order], until[order])

    @override
    def merged(self, newer: Stays) -> Stays:
        people, until, first = self.interleaved(newer)
        last = np.roll(first, -1)  # the first row is always one
        return Stays(people[last], until[last])

    def after(self, step: int) -> Stays:
        """Leave out those who are not present at the end of `step`, nor later, where nothing else is known of them."""
        kept = self.values > step
        return Stays(self.keys[kept], self.values[kept])


class MembershipLog(SortedRuns[Stays]):
    """All stays so far. Who has left is forgotten when all runs become one, unless limits are to be known."""

    def updated(self, stays: Stays, step: int) -> MembershipLog:
        """Return what is known after new stays in step `step`."""
        after = self.add(stays)
        if not len(stays) or len(after.runs) > 1:
            return after
        return MembershipLog().add(after.runs[0].after(step))

    def values_of(self, people: np.ndarray) -> np.ndarray:
        """Return the value of each of `people` (uint64, any order); ABSENT if unknown."""
        values = np.full(len(people), ABSENT, np.int64)
        for there, newer in self.found(people):  # oldest first: what is newer comes on top
            values = np.where(there, newer, values)
        return values


class LastPresence(BoundEvents):
    """Per step and shard of people: the last event of each person; at one time, leaving comes last."""

    timeout: int | None

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        order = np.lexsort((events.items, events.times, events.users))
        rows = order[np.roll(first_of_run(events.users[order]), -1)]  # the first row is always one
        kinds = events.items[rows]
        stay = stays(self.steps, key.step, kinds, events.times[rows], self.timeout)
        last = HolderBatch(events.users[rows], kinds, stay, Names.none())
        yield people_key(key.shard), stepped(key.step, encode(last))


CHANGE = struct.Struct(">q")


class TrackMembers(StepFn, state="track_members"):
    """Per shard of people: find who enters and who leaves, and send on by how much that changes the size of the set.

    Somebody who enters and is present, or leaves and is absent, changes nothing. With a time-out it is known when an
    entering event comes when the stay will end, if no other event comes: so changes of later steps are sent at once,
    and taken back if another event comes. People without new events need no work.

    What is sent on about a person depends on that person's events alone.

    Args:
        limit: windows at whose ends one person is present at most, the first ones; None for all.
    """

    limit: int | None = None
    limited = LimitCounter("entries")

    @override
    def initial(self, key: bytes) -> MembershipLog:
        return MembershipLog()

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: MembershipLog) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        heard = HolderBatch.read(batches)
        people, stay = heard.users, heard.ranks.astype(np.int64)
        until = np.where(stay == FOR_EVER, NEVER, step + stay)
        unit = 1 if self.limit is None else 1 << USED_BITS
        before, used = np.divmod(state.values_of(people), unit)
        present = before > step
        used = used - np.where(present, before - step, 0)
        left = np.full(len(people), NEVER - step) if self.limit is None else self.limit - used
        entering = np.flatnonzero(~present & (stay > 0))
        admitted = left[entering] > 0
        ends = np.minimum(until, self._last + 1)[entering]
        cut = admitted & (step + left[entering] < ends)
        self.limited.add(len(admitted), int(len(admitted) - admitted.sum() + cut.sum()))
        changed = present.copy()
        changed[entering[admitted]] = True
        rows = np.flatnonzero(changed)
        if self.limit is not None:
            until = np.minimum(until, step + left)
        outputs = self._changes(step, present[rows], stay[rows] > 0, before[rows], until[rows])
        stays = Stays.of(people[rows], (until * unit + (used + until - step) % unit)[rows])
        return Stepped(state.updated(stays, step), outputs, stays.to_bytes if len(rows) else unchanged)

    def _changes(
        self, step: int, present: np.ndarray, stays: np.ndarray, before: np.ndarray, until: np.ndarray
    ) -> list[Keyed]:
        """Return by how much the size of the set changes, at this step and at later ones."""
        now = np.full(len(present), step)
        parts = [(now, -1, present), (before, 1, present), (now, 1, stays), (until, -1, stays)]
        last = min(self._last, self.steps.last_of_period(step))
        chosen = [(at[rows & (at <= last)], sign) for at, sign, rows in parts]
        ats, place = np.unique(np.concatenate([at for at, _ in chosen]), return_inverse=True)
        signs = np.concatenate([np.full(len(at), sign) for at, sign in chosen])
        changes = zip(ats.tolist(), totals(place, signs, len(ats)).tolist(), strict=True)
        return [on_clock(at, CHANGE.pack(total)) for at, total in changes if total]

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> MembershipLog:
        return MembershipLog.of(map(Stays.from_bytes, segments))

    @override
    def encode(self, state: MembershipLog) -> list[bytes]:
        return state.merged(Stays(np.empty(0, np.uint64), np.empty(0, np.int64))).to_segments()


class SetCardinality(CardinalityParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    last_stage = PublishCardinality

    @property
    def domain(self) -> Actions:
        """What events say."""
        return self.actions

    @override
    def _splitter(self, **given: Any) -> beam.DoFn:
        return super()._splitter(other="events_of_other_values", **given)

    @override
    def _limits(self) -> tuple[LastPresence, TrackMembers]:
        track = TrackMembers(steps=self.steps, timer_offset=1, limit=self.max_contributions)
        return LastPresence(steps=self.steps, timeout=self.timeout), track

    @property
    @override
    def _labels(self) -> tuple[Any, ...]:  # type: ignore[override]
        return f"{self.actions.begin} {self.actions.end} {self.timeout}", f"{self.max_contributions}"
