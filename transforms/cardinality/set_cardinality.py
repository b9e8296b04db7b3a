"""SetCardinality: events of people who come and go in; how many are there now, at the end of every window, out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from privstream.mechanisms.cardinality.algorithms import CardinalityState
from privstream.mechanisms.monitor.holdings import Charges
from privstream.mechanisms.noise.routed import SourcesByName
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import unpack
from privstream.mechanisms.sorted_runs import SEGMENT, Run, SortedRuns
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    Names,
    StepKey,
    decode,
    encode,
    first_of_run,
)
from privstream.transforms.cardinality.parameters import (
    ENTER,
    FOR_EVER,
    KINDS,
    CardinalityParameters,
    PresenceRules,
)
from privstream.transforms.events.bounding import (
    Charged,
    LimitCounter,
    Used,
    draw_in_streams,
    entry,
    to_people,
    within_limit,
)
from privstream.transforms.events.dead_letters import late_letter
from privstream.transforms.events.people_transform import PeopleTransform
from privstream.transforms.events.private_transform import ApplyDoFn
from privstream.transforms.events.split import stream_numbers
from privstream.transforms.events.split_stages import CodedEvents, SplitCodes
from privstream.transforms.row_types import CardinalityEstimate, interval
from privstream.transforms.timing.clocked import MechanismSteps, Outputs, WithClock, on_clocks
from privstream.transforms.timing.keyed_state import NEVER
from privstream.transforms.timing.on_time import OnTimeBatches
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps
from typing_extensions import override

NO_BOUND = -1
USED_BITS = 17
"""Of a packed number: windows in which a person has counted, up to 65,535, and one more."""


class PublishCardinality(MechanismSteps, state="publish_cardinality"):
    """Per stream: run the mechanism through every window, and publish its estimates."""

    counter = "estimates_published"

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.exhausted = Metrics.counter("privstream", "estimates_without_bound")

    @override
    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        self.late.inc()
        yield late_letter(self.steps, step, "late change", "")

    @override
    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: CardinalityState
    ) -> tuple[CardinalityState, Outputs]:
        stream = key.decode()
        changes = np.zeros(last - first + 1, np.int64)
        for step, found in batches.items():
            if first <= step <= last:
                changes[step - first] = sum(CHANGE.unpack(batch)[0] for batch in found)
        state, published = self.mechanism.run(state, changes, self.noise_of(key, first))
        outputs: list[tuple[int, CardinalityEstimate]] = []
        columns, spread = (column.tolist() for column in published), self.mechanism.algorithm.spread
        for step, (estimate, bound, exhausted) in enumerate(zip(*columns, strict=True), start=first):
            start, end = self.steps.bounds(step)
            ends = (None, None) if exhausted else map(float, interval(estimate, bound if spread is None else spread))
            error_bound = NO_BOUND if exhausted else bound
            shown = max(0, estimate) if spread is None else estimate  # by counts it is unbiased
            outputs.append((step, CardinalityEstimate(stream, start, end, shown, error_bound, *ends)))
        self.published.inc(len(outputs))
        self.exhausted.inc(int(published.exhausted.sum()))
        return state, outputs


class SetCardinality(CardinalityParameters, PeopleTransform):  # noqa: D101 - its docstring is that of its parameters
    @property
    def _common(self) -> dict[str, Any]:
        """What stages that know people are given."""
        return {"steps": self.steps, "rules": self.rules}

    @property
    def _people(self) -> NoiseSource:
        """What tells people apart."""
        return self.noise.derive("people in a set")

    @override
    def _splitter(self) -> SplitPresence:
        return SplitPresence(**self._common, noise=self._people, shards=self.shards)

    @override
    def _bound(self, batches: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        last = apply_dofn(batches, LastPresence(**self._common, timer_offset=1), Keyed)
        track = TrackMembers(
            **self._common,
            noise=self._people,
            timer_offset=2,
            limit=self.max_contributions,
        )
        return apply_dofn(last, track, Keyed)

    @override
    def _publish(self, changes: PCollection[Any], apply_dofn: ApplyDoFn) -> PCollection[Any]:
        clocked = changes | "WithClock" >> WithClock(self.steps, self.rules.streams, together=True, apart=False)
        publish = PublishCardinality(
            steps=self.steps,
            timer_offset=3,
            streams=self.rules.streams,
            mechanism=self.mechanism,
            noise=self._noise(),
        )
        return apply_dofn(clocked, publish, CardinalityEstimate)

    def _noise(self) -> NoiseSource:
        """Return noise that depends on everything that the sizes depend on, beside the events."""
        until = "" if self.rules.timeout is None else " included"  # who has an event at midnight is there for a day
        values = f"{self.rules.enter} {self.rules.leave} {self.rules.timeout}{until}"
        limit = f"{self.max_contributions} {sorted(self.rules.streams)}"  # which stream counts depends on all of them
        return self.noise.derive("SetCardinality", self.steps.label, values, limit)


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
        for there, stays in self.found(people):  # oldest first: what is newer comes on top
            values = np.where(there, stays, values)
        return values

    def compact(self, step: int) -> Stays:
        """Return as one run what is known after the end of `step`."""
        return self.merged(Stays(np.empty(0, np.uint64), np.empty(0, np.int64))).after(step)


class SplitPresence(SplitCodes):
    """Split events of people who come and go; the code of an event is 2 * stream + kind.

    What lies outside of the public steps or streams, or neither enters nor leaves, is counted and left out.
    """

    def __init__(self, *, steps: Steps, rules: PresenceRules, noise: NoiseSource, shards: int) -> None:
        super().__init__(steps=steps, noise=noise, shards=shards)
        self.rules = rules
        self.other_values = Metrics.counter("privstream", "events_of_other_values")

    @override
    def code(self, batch: pa.RecordBatch) -> CodedEvents:
        streams = stream_numbers(batch["stream"], self.rules.streams)
        kinds = self.rules.kinds(batch["item"]) if self.rules.by_item else np.full(batch.num_rows, ENTER)
        rows, steps = self.steps.assign(batch["time"].to_numpy())
        meant = (streams >= 0) & (kinds >= 0)
        self.other_streams.inc(int((streams < 0).sum()))
        self.other_values.inc(int(((streams >= 0) & (kinds < 0)).sum()))
        self.outside.inc(int(meant.sum() - meant[rows].sum()))
        rows, steps = rows[meant[rows]], steps[meant[rows]]
        self.usable.inc(len(rows))
        return CodedEvents(rows, (2 * streams + kinds)[rows].astype(np.uint64), steps)


def last_presence(users: np.ndarray, items: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the row of each person's last event in each stream; at one time, leaving comes last.

    A function of the person's own events, whatever their order in the input: equal rows are alike.
    """
    streams = items >> np.uint64(1)
    order = np.lexsort((items, times, streams, users))
    last = np.roll(first_of_run(users[order], streams[order]), -1)  # the first row is always one
    rows: np.ndarray = order[last]
    return rows


class LastPresence(OnTimeBatches, state="last_presence"):
    """Per step and shard of people: late batches are dropped, and the last event of each person goes on, by shard."""

    def __init__(self, *, steps: Steps, rules: PresenceRules, timer_offset: int) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.rules = rules

    @override
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        events = EventBatch.join([decode(EventBatch, batch) for batch in batches])
        rows = last_presence(events.users, events.items, events.times)
        items = events.items[rows]
        kinds, streams = (items & np.uint64(1)).astype(np.int64), items >> np.uint64(1)
        stay = self.rules.stay(self.steps, key.step, kinds, events.times[rows])
        last = HolderBatch(events.users[rows], streams, stay, Names.none())
        yield to_people(key, encode(last))

    @override
    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        items = decode(EventBatch, batch).items
        self.late.inc(len(items))
        for item, number in zip(*(part.tolist() for part in np.unique(items, return_counts=True)), strict=True):
            name = self.rules.streams[item >> 1]
            record = f"{KINDS[item & 1]} ({number} events)"
            yield late_letter(self.steps, key.step, "late events", record, name)


CHANGE = struct.Struct(">q")
LIMITS = ("joined", "streams")


@dataclass(frozen=True)
class Members:
    """Who is present until when, and what people have used of their limits; all as of the end of `step`.

    `membership`, and of the limits `joined`, are kept by the keyed hash of person and stream, `streams` by
    person.
    """

    step: int
    membership: MembershipLog
    used: Used


class TrackMembers(OrderedSteps, state="track_members"):
    """Per shard of people: find who enters and who leaves, and send on by how much that changes each stream's size.

    Somebody who enters and is present, or leaves and is absent, changes nothing. With a time-out it is known when an
    entering event comes when the stay will end, if no other event comes: so changes of later steps are sent at once,
    and taken back if another event comes. People without new events need no work.

    What is sent on about a person depends on that person's events alone.

    Args:
        limit: windows at whose ends one person is present at most, the first ones; None for all.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        rules: PresenceRules,
        noise: NoiseSource,
        timer_offset: int,
        limit: int | None = None,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.rules = rules
        self._sources = SourcesByName(partial(noise.derive, "person in stream"))
        self.limit = limit
        self.limited = LimitCounter("entries", steps)
        self._last = steps.latest(END_OF_TIME, STAGES) if steps.end is None else steps.end - 1

    @override
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: Members) -> Handled:
        heard = HolderBatch.join([batch for _, batch in batches])
        streams, stay = heard.items.astype(np.int64), heard.ranks.astype(np.int64)
        until = np.where(stay == FOR_EVER, NEVER, step + stay)
        places = self._places(heard.users, streams)
        before, used = self._unpacked(state.membership.values_of(places))
        present = before > step
        used = used - np.where(present, before - step, 0)
        left = np.asarray(NEVER - step if self.limit is None else self.limit - used)
        entering = np.flatnonzero(~present & (stay > 0))
        admitted, charged = self._admit(heard.users[entering], places[entering], state.used)
        admitted &= np.broadcast_to(left, len(places))[entering] > 0
        ends = np.minimum(until, self._last + 1)[entering]
        cut = admitted & (np.broadcast_to(step + left, len(places))[entering] < ends)
        self.limited.add(step, len(admitted), int(len(admitted) - admitted.sum() + cut.sum()))
        changed = present.copy()
        changed[entering[admitted]] = True
        rows = np.flatnonzero(changed)
        if self.limit is not None:
            until = np.minimum(until, step + left)
        outputs = self._changes(step, streams[rows], present[rows], stay[rows] > 0, before[rows], until[rows])
        stays = Stays.of(places[rows], self._packed(until, used + until - step)[rows])
        after = Members(step, state.membership.updated(stays, step), state.used.after(charged))
        segment = _members_entry(step, stays, charged) if len(rows) else None
        return Handled(after, segment, outputs)

    def _places(self, users: np.ndarray, streams: np.ndarray) -> np.ndarray:
        """Return the keyed hash of person and stream."""
        if len(self.rules.streams) == 1:
            return users
        return draw_in_streams(self._sources.__getitem__, self.rules.streams, streams, users)

    def _admit(self, people: np.ndarray, places: np.ndarray, used: Used) -> tuple[np.ndarray, Charged]:
        """Tell which of the distinct entries are within a person's limits, and what they charge."""
        admitted = np.ones(len(people), bool)
        charged = dict.fromkeys(LIMITS, Charges.none())
        if len(self.rules.streams) > 1:
            new = np.flatnonzero(admitted & (used["joined"].charged(places) == 0))
            within = within_limit(people[new], 1, used["streams"], lambda rows: places[new[rows]])
            admitted[new[~within]] = False
            charged |= {"joined": Charges.of(places[new[within]]), "streams": Charges.of(people[new[within]])}
        return admitted, charged

    def _packed(self, until: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Return until when people stay, and how often they count until then, as one number."""
        return until if self.limit is None else (until << USED_BITS) | used

    def _unpacked(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `_packed` was given."""
        if self.limit is None:
            return values, np.zeros_like(values)
        return values >> USED_BITS, values & ((1 << USED_BITS) - 1)

    def _changes(
        self,
        step: int,
        streams: np.ndarray,
        present: np.ndarray,
        stays: np.ndarray,
        before: np.ndarray,
        until: np.ndarray,
    ) -> list[tuple[bytes, bytes]]:
        """Return by how much each stream's size changes, at this step and at later ones."""
        now = np.full(len(streams), step)
        parts = [(now, -1, present), (before, 1, present), (now, 1, stays), (until, -1, stays)]
        chosen = [
            np.flatnonzero(rows & (at <= min(self._last, self.steps.last_of_period(step)))) for at, _, rows in parts
        ]
        ats = np.concatenate([at[rows] for (at, _, _), rows in zip(parts, chosen, strict=True)])
        signs = np.concatenate([np.full(len(rows), sign) for (_, sign, _), rows in zip(parts, chosen, strict=True)])
        names = np.concatenate([streams[rows] for rows in chosen])
        order = np.lexsort((ats, names))
        starts = np.flatnonzero(first_of_run(names[order], ats[order]))
        if not len(starts):
            return []
        totals = np.add.reduceat(signs[order], starts)
        changes = [
            (self.rules.streams[names[order[start]]], int(ats[order[start]]), CHANGE.pack(total))
            for start, total in zip(starts, totals.tolist(), strict=True)
            if total
        ]
        return list(on_clocks(changes))

    @override
    def describe_late(self, key: StepKey, batch: HolderBatch) -> Iterator[Any]:
        yield late_letter(self.steps, key.step, "late events", f"{len(batch.users)} people")

    @override
    def decode(self, key: bytes, segments: list[bytes]) -> Members:
        step, membership = 0, MembershipLog()
        for segment in segments:
            found: dict[str, Any] = unpack("members", 1, segment)
            step = int(found["step"])
            membership = membership.updated(Stays.from_bytes(found["stays"]), step)
        return Members(step, membership, Used.of_entries("members", LIMITS, segments))

    @override
    def encode(self, state: Members) -> list[bytes]:
        stays, charges = state.membership.compact(state.step), state.used.compact()
        longest = max(len(stays), *map(len, charges.values()))
        return [
            _members_entry(
                state.step,
                stays.slice(i, i + SEGMENT),
                {limit: one.slice(i, i + SEGMENT) for limit, one in charges.items()},
            )
            for i in range(0, longest, SEGMENT)
        ]


def _members_entry(step: int, stays: Stays, charged: Charged) -> bytes:
    """Encode one entry of the log."""
    return entry("members", charged, step=step, stays=stays.to_bytes())
