"""SetCardinality: events of people who come and go in; how many are there now, at the end of every window, out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.continual.cardinality import CardinalityState
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT, Run, SortedRuns
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
from privstream.transforms.people.bounding import BoundEvents, LimitCounter, SplitEvents
from privstream.transforms.questions.cardinality import FOR_EVER, CardinalityParameters, stays
from privstream.transforms.row_types import CardinalityEstimate, interval
from privstream.transforms.stages import ApplyDoFn, PeopleTransform
from privstream.transforms.timing.clock import WithClock, on_clock, stepped
from privstream.transforms.timing.step_fn import NEVER, StepFn, Stepped, unchanged
from typing_extensions import override

NO_BOUND = -1
USED_BITS = 17
"""Of a packed number: windows in which a person has counted, up to 65,535, and one more."""


class PublishCardinality(StepFn, state="publish_cardinality"):
    """Run the mechanism through every window, and publish its estimates."""

    counter = "estimates_published"
    exhausted = Metrics.counter("privstream", "estimates_without_bound")

    @override
    def step(
        self, key: bytes, step: int, batches: list[bytes], state: CardinalityState
    ) -> tuple[CardinalityState, list[CardinalityEstimate]]:
        change = sum(CHANGE.unpack(batch)[0] for batch in batches)
        state, (estimate, bound, exhausted) = self.mechanism.step(state, change, self.noise_of(step))
        spread = self.mechanism.algorithm.spread
        lower, upper = interval(float(estimate), None if exhausted else bound if spread is None else spread)
        people = max(0, estimate)
        noisy = people if spread is None else estimate  # by counts it is unbiased
        self.published.inc()
        self.exhausted.inc(int(exhausted))
        start, end = self.steps.bounds(step)
        row = CardinalityEstimate(start, end, float(people), lower, upper, noisy, NO_BOUND if exhausted else bound)
        return state, [row]


class SetCardinality(CardinalityParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    @override
    def _splitter(self) -> SplitEvents:
        given = self._split_by | {"noise": self.noise.derive("people in a set")}
        return SplitEvents(**given, domain=self.actions, positions=True, other="events_of_other_values")

    @override
    def _bound(self, closed: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        last = apply_dofn(closed, LastPresence(steps=self.steps, timeout=self.timeout), Keyed)
        track = TrackMembers(steps=self.steps, timer_offset=1, limit=self.max_contributions)
        return apply_dofn(last | "PeopleClocks" >> WithClock(self.steps, self.people), track, Keyed)

    @override
    def _publish(self, changes: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        clocked = changes | "WithClock" >> WithClock(self.steps)
        publish = PublishCardinality(
            steps=self.steps,
            timer_offset=2,
            mechanism=self.mechanism,
            noise=self._noise(),
        )
        return apply_dofn(clocked, publish, CardinalityEstimate)

    def _noise(self) -> NoiseSource:
        """Return noise that depends on everything that the sizes depend on, beside the events."""
        values = f"{self.actions.begin} {self.actions.end} {self.timeout}"
        return self.noise.derive("SetCardinality", self.steps.label, values, f"{self.max_contributions}")


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

    def compact(self, step: int) -> Stays:
        """Return as one run what is known after the end of `step`."""
        return self.merged(Stays(np.empty(0, np.uint64), np.empty(0, np.int64))).after(step)


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


@dataclass(frozen=True)
class Members:
    """Who is present until when, and how often people have counted; as of the end of `step`."""

    step: int
    membership: MembershipLog


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
    def initial(self, key: bytes) -> Members:
        return Members(0, MembershipLog())

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Members) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        heard = HolderBatch.read(batches)
        people, stay = heard.users, heard.ranks.astype(np.int64)
        until = np.where(stay == FOR_EVER, NEVER, step + stay)
        before, used = self._unpacked(state.membership.values_of(people))
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
        stays = Stays.of(people[rows], self._packed(until, used + until - step)[rows])
        after = Members(step, state.membership.updated(stays, step))
        return Stepped(after, outputs, partial(_members_entry, step, stays) if len(rows) else unchanged)

    def _packed(self, until: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Return until when people stay, and how often they count until then, as one number."""
        return until if self.limit is None else (until << USED_BITS) | used

    def _unpacked(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `_packed` was given."""
        if self.limit is None:
            return values, np.zeros_like(values)
        return values >> USED_BITS, values & ((1 << USED_BITS) - 1)

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
    def decode(self, key: bytes, segments: list[bytes]) -> Members:
        step, membership = 0, MembershipLog()
        for segment in segments:
            found: dict[str, Any] = unpack("members", 1, segment)
            step = int(found["step"])
            membership = membership.updated(Stays.from_bytes(found["stays"]), step)
        return Members(step, membership)

    @override
    def encode(self, state: Members) -> list[bytes]:
        stays = state.membership.compact(state.step)
        return [_members_entry(state.step, stays.slice(i, i + SEGMENT)) for i in range(0, len(stays), SEGMENT)]


def _members_entry(step: int, stays: Stays) -> bytes:
    """Encode one entry of the log."""
    return pack("members", 1, {"step": step, "stays": stays.to_bytes()})
