"""SetCardinality: events of people who come and go in; how many are there now, at the end of every window, out."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from privstream.mechanisms.continual.cardinality import Cardinalities, CardinalityState
from privstream.mechanisms.mechanism import pack, unpack
from privstream.transforms.batches import (
    NO_NAMES,
    EventBatch,
    HolderBatch,
    Keyed,
    StepKey,
    encode,
    first_of_run,
    shard_key,
    totals,
)
from privstream.transforms.counters import count_dropped, counter
from privstream.transforms.parameters import BEGIN, Actions
from privstream.transforms.people.bounding import BoundEvents
from privstream.transforms.questions.numbers import FOR_EVER, CardinalityParameters
from privstream.transforms.questions.running_stages import RunningTransform
from privstream.transforms.row_types import CardinalityEstimate, interval
from privstream.transforms.timing.step_fn import NEVER, StepFn, Stepped, on_clock, stepped, unchanged
from typing_extensions import override

NO_BOUND = -1
USED_BITS = 17
"""Of a packed number: windows in which a person has counted, up to 65,535, and one more."""


class Members(NamedTuple):
    """What is known of distinct people.

    Attributes:
        people: uint64, shape (n,), strictly increasing.
        until: the step, int64, at whose end each is no longer present; with a limit times 2^17, plus the number of
            windows in which the person counts until then.
    """

    people: np.ndarray
    until: np.ndarray

    @classmethod
    def latest(cls, parts: Iterable[Members]) -> Members:
        """Return what is known last, given what became known from time to time."""
        people, until = (np.concatenate(columns) for columns in zip(NOBODY, *parts, strict=True))
        order = np.argsort(people, kind="stable")
        last = order[np.roll(first_of_run(people[order]), -1)]  # the first row is always one
        return cls(people[last], until[last])

    def of(self, people: np.ndarray) -> np.ndarray:
        """Return `until` of some people in any order; 0 where nothing is known."""
        place = np.searchsorted(self.people, people)
        known = place < len(self.people)
        known[known] = self.people[place[known]] == people[known]
        found = np.zeros(len(people), np.int64)
        found[known] = self.until[place[known]]
        return found

    def after(self, step: int) -> Members:
        """Leave out those who are not present at the end of `step`, nor later, where nothing else is known of them."""
        return Members(self.people[self.until > step], self.until[self.until > step])

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack("members", 1, self._asdict())

    @classmethod
    def from_bytes(cls, data: bytes) -> Members:
        """Decode."""
        found: dict[str, Any] = unpack("members", 1, data)
        return cls(**found)


NOBODY = Members(np.empty(0, np.uint64), np.empty(0, np.int64))


class LastPresence(BoundEvents):
    """Per step and shard of people: the last event of each person; at one time, leaving comes last."""

    timeout: int | None  # microseconds after their last entering event until which a person is there

    @override
    def bound(self, key: StepKey, events: EventBatch) -> Iterator[Keyed]:
        order = np.lexsort((events.items, events.times, events.users))
        rows = order[np.roll(first_of_run(events.users[order]), -1)]  # the first row is always one
        kinds = events.items[rows]
        last = HolderBatch(events.users[rows], kinds, self.stays(key.step, kinds, events.times[rows]), NO_NAMES)
        yield shard_key(key.shard), stepped(key.step, encode(last))

    def stays(self, step: int, kinds: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return at the ends of how many steps, from `step` on, each person is present, if nothing more happens."""
        present = np.full(len(kinds), FOR_EVER)
        if self.timeout is not None:
            present = self.steps.starting(self.steps.after(times, self.timeout)) - step  # still there at that moment
        return np.where(kinds == BEGIN, np.maximum(present, 0), 0).astype(np.uint16)


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

    @override
    def initial(self, key: bytes) -> Members:
        return NOBODY

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: Members) -> Stepped:
        if not batches:
            return Stepped(state, (), unchanged)
        heard = HolderBatch.read(batches)
        people, stay = heard.users, heard.ranks.astype(np.int64)
        until = np.where(stay == FOR_EVER, NEVER, step + stay)
        unit = 1 if self.limit is None else 1 << USED_BITS
        before, used = np.divmod(state.of(people), unit)
        present = before > step
        used = used - np.where(present, before - step, 0)
        left = np.full(len(people), NEVER - step) if self.limit is None else self.limit - used
        entering = np.flatnonzero(~present & (stay > 0))
        admitted = left[entering] > 0
        ends = np.minimum(until, self._last + 1)[entering]
        cut = admitted & (step + left[entering] < ends)
        count_dropped("entries", len(admitted), int(len(admitted) - admitted.sum() + cut.sum()))
        changed = present.copy()
        changed[entering[admitted]] = True
        rows = np.flatnonzero(changed)
        if self.limit is not None:
            until = np.minimum(until, step + left)
        outputs = self._changes(step, present[rows], stay[rows] > 0, before[rows], until[rows])
        known = Members(people[rows], (until * unit + (used + until - step) % unit)[rows])
        after = Members.latest([state, known]).after(step) if len(rows) else state
        return Stepped(after, outputs, known.to_bytes if len(rows) else unchanged)

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
    def decode(self, segments: list[bytes]) -> Members:
        return Members.latest(map(Members.from_bytes, segments))

    @override
    def encode(self, state: Members) -> list[bytes]:
        return [state.to_bytes()]


class SetCardinality(CardinalityParameters, RunningTransform):  # noqa: D101 - its docstring is that of its parameters
    row_type, counter = CardinalityEstimate, "estimates_published"

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

    @override
    def counts_of(self, step: int, batches: list[bytes]) -> int:
        return sum(CHANGE.unpack(batch)[0] for batch in batches)

    @override
    def rows(self, state: CardinalityState, found: Cardinalities) -> Iterator[tuple[Any, ...]]:
        estimate, bound, exhausted = found
        counter("estimates_without_bound").inc(int(exhausted))
        spread = self.mechanism.spread
        ends = interval(float(estimate), None if exhausted else bound if spread is None else spread)
        people = max(0, estimate)
        noisy = people if spread is None else estimate  # by counts it is unbiased
        yield float(people), *ends, noisy, NO_BOUND if exhausted else bound
