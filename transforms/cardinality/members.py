"""Who is in the set: which events say so, per shard of people; and from them to changes of the set's size."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
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
)
from privstream.transforms.events.bounding import (
    Charged,
    LimitCounter,
    Used,
    draw_in_streams,
    entry,
    first_of_run,
    to_people,
    within_limit,
)
from privstream.transforms.events.dead_letters import late_letter
from privstream.transforms.events.parameters import check_texts
from privstream.transforms.events.split import CodedEvents, SplitCodes, stream_numbers
from privstream.transforms.timing.clocked import on_clocks
from privstream.transforms.timing.on_time import OnTimeBatches
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps, to_micros
from typing_extensions import override

ABSENT = 0


@dataclass(frozen=True, eq=False)
class Stays(Run):
    """Until when distinct people stay: sixteen bytes a person, encoded too.

    Attributes:
        keys: the people, uint64, shape (n,), strictly increasing.
        values: the step, int64, at whose end each is no longer present.
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
        """Leave out those who are not present at the end of `step`, nor later."""
        kept = self.values > step
        return Stays(self.keys[kept], self.values[kept])


class MembershipLog(SortedRuns[Stays]):
    """All stays so far. Who has left is forgotten when all runs become one."""

    def updated(self, stays: Stays, step: int) -> MembershipLog:
        """Return what is known after new stays in step `step`."""
        after = self.add(stays)
        if not len(stays) or len(after.runs) > 1:
            return after
        return MembershipLog().add(after.runs[0].after(step))

    def until(self, people: np.ndarray) -> np.ndarray:
        """Return for each of `people` (uint64, any order) the step at whose end they are gone; ABSENT if unknown."""
        until = np.full(len(people), ABSENT, np.int64)
        for there, stays in self.found(people):  # oldest first: what is newer comes on top
            until = np.where(there, stays, until)
        return until

    def compact(self, step: int) -> Stays:
        """Return as one run who is present after the end of `step`."""
        return self.merged(Stays(np.empty(0, np.uint64), np.empty(0, np.int64))).after(step)


ENTER, LEAVE = 0, 1
KINDS = ("enter", "leave")
FOR_EVER = 65_535  # steps, where there is no time-out


@dataclass(frozen=True, kw_only=True)
class PresenceRules:
    """How events are read: all of it is public.

    Attributes:
        enter: items that say that a person enters; None: all that do not say that they leave.
        leave: items that say that a person leaves; None for none.
        timeout: microseconds after their last entering event at which a person has left, or None for never.
        streams: names of the streams; "" alone if events carry none.
    """

    enter: tuple[str, ...] | None
    leave: tuple[str, ...] | None
    timeout: int | None
    streams: tuple[str, ...]

    @classmethod
    def of(
        cls,
        *,
        enter_values: tuple[str, ...] | None,
        leave_values: tuple[str, ...] | None,
        timeout: float | None,
        streams: tuple[str, ...] | None,
    ) -> PresenceRules:
        """Make them from arguments of a transform."""
        for name, values in {"enter_values": enter_values, "leave_values": leave_values, "streams": streams}.items():
            if values is not None:
                check_texts(name, values)
        if set(enter_values or ()) & set(leave_values or ()):
            raise ValueError("enter_values and leave_values must have nothing in common")
        if leave_values is None and timeout is None:
            raise ValueError("leave_values or timeout must be given: nobody would ever leave")
        micros = None if timeout is None else to_micros("timeout", timeout)
        return cls(enter=enter_values, leave=leave_values, timeout=micros, streams=streams or ("",))

    @property
    def by_item(self) -> bool:
        """Whether the item says anything; if not, whoever has an event is there."""
        return self.enter is not None or self.leave is not None

    def kinds(self, items: pa.Array) -> np.ndarray:
        """Return ENTER, LEAVE or -1 for neither, int64, for each item."""
        leaves = _among(items, self.leave or ())
        enters = ~leaves if self.enter is None else _among(items, self.enter)
        return np.where(leaves, LEAVE, np.where(enters, ENTER, -1))

    def stay(self, steps: Steps, step: int, kinds: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return at the ends of how many steps, from `step` on, each person is present, if nothing more happens."""
        if self.timeout is None:
            present = np.full(len(kinds), FOR_EVER)
        else:
            present = steps.begun_before(times + self.timeout) - step
        return np.where(kinds == ENTER, np.maximum(present, 0), 0).astype(np.uint16)


def _among(items: pa.Array, values: tuple[str, ...]) -> np.ndarray:
    found: np.ndarray = pc.is_in(items, pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
    return found


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


NEVER = 1 << 62
CHANGE = struct.Struct(">q")
LIMITS = ("visits", "joined", "streams")


@dataclass(frozen=True)
class Members:
    """Who is present until when, and what people have used of their limits; all as of the end of `step`.

    `membership`, and of the limits `visits` and `joined`, are kept by the keyed hash of person and stream, `streams` by
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
        visits: how often one person enters a stream at most, or None.
        streams_per_person: streams that one person enters at most, those entered first, or None.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        rules: PresenceRules,
        noise: NoiseSource,
        timer_offset: int,
        visits: int | None = None,
        streams_per_person: int | None = None,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.rules = rules
        self._sources = SourcesByName(partial(noise.derive, "person in stream"))
        self.visits = visits
        self.streams_per_person = streams_per_person
        self.limited = LimitCounter("entries", steps)
        self._last = steps.latest(END_OF_TIME, STAGES) if steps.end is None else steps.end - 1

    @override
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: Members) -> Handled:
        heard = HolderBatch.join([batch for _, batch in batches])
        streams, stay = heard.items.astype(np.int64), heard.ranks.astype(np.int64)
        until = np.where(stay == FOR_EVER, NEVER, step + stay)
        places = self._places(heard.users, streams)
        before = state.membership.until(places)
        present = before > step
        entering = np.flatnonzero(~present & (stay > 0))
        admitted, charged = self._admit(heard.users[entering], places[entering], state.used)
        self.limited.add(step, len(admitted), int(len(admitted) - admitted.sum()))
        changed = present.copy()
        changed[entering[admitted]] = True
        rows = np.flatnonzero(changed)
        outputs = self._changes(step, streams[rows], present[rows], stay[rows] > 0, before[rows], until[rows])
        stays = Stays.of(places[rows], until[rows])
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
        if self.visits is not None:
            admitted &= used["visits"].charged(places) < self.visits
        if self.streams_per_person is not None and self.streams_per_person < len(self.rules.streams):
            new = np.flatnonzero(admitted & (used["joined"].charged(places) == 0))
            within = within_limit(people[new], self.streams_per_person, used["streams"], lambda rows: places[new[rows]])
            admitted[new[~within]] = False
            charged |= {"joined": Charges.of(places[new[within]]), "streams": Charges.of(people[new[within]])}
        if self.visits is not None:
            charged["visits"] = Charges.of(places[admitted])
        return admitted, charged

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
