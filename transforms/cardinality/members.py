"""Who is in the set: per shard of people, in order of steps; from the last events of people to changes of the size."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.routed import SideBySide, SourcesByName
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import HolderBatch, StepKey
from privstream.transforms.cardinality.membership_log import MembershipLog, Stays
from privstream.transforms.cardinality.presence_rules import FOR_EVER, PresenceRules
from privstream.transforms.events.bounding import first_of_run, place_in_run
from privstream.transforms.events.late import late_letter
from privstream.transforms.events.limit_counter import LimitCounter
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.public_clock import on_clocks
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps

NEVER = 1 << 62
CHANGE = struct.Struct(">q")
NOBODY = UserCounters()
NOWHERE = MembershipLog()


@dataclass(frozen=True)
class Members:
    """Who is present until when, how often they have entered, and in how many streams; all as of the end of `step`.

    `membership`, `visits` and `joined` are kept by the keyed hash of person and stream, `streams` by person.
    """

    step: int = 0
    membership: MembershipLog = NOWHERE
    visits: UserCounters = NOBODY
    joined: UserCounters = NOBODY
    streams: UserCounters = NOBODY


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

    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], state: Members) -> Handled:
        """Compare the new stays with those known before."""
        said = HolderBatch.join([batch for _, batch in batches])
        streams, stay = said.items.astype(np.int64), said.ranks.astype(np.int64)
        until = np.where(stay == FOR_EVER, NEVER, step + stay)
        places = self._places(said.users, streams)
        before = state.membership.until(places)
        present = before > step
        entering = np.flatnonzero(~present & (stay > 0))
        admitted, visits, joined, of_person = self._admit(said.users[entering], places[entering], state)
        self.limited.add(step, len(admitted), int(len(admitted) - admitted.sum()))
        changed = present.copy()
        changed[entering[admitted]] = True
        rows = np.flatnonzero(changed)
        outputs = self._changes(step, streams[rows], present[rows], stay[rows] > 0, before[rows], until[rows])
        stays = Stays.of(places[rows], until[rows])
        after = Members(
            step=step,
            membership=state.membership.updated(stays, step),
            visits=state.visits.add(visits),
            joined=state.joined.add(joined),
            streams=state.streams.add(of_person),
        )
        segment = _segment(step, stays, visits, joined, of_person) if len(rows) else None
        return Handled(after, segment, outputs)

    def _places(self, users: np.ndarray, streams: np.ndarray) -> np.ndarray:
        """Return the keyed hash of person and stream."""
        if len(self.rules.streams) == 1:
            return users
        places = np.empty(len(users), np.uint64)
        order = np.argsort(streams, kind="stable")
        starts = np.flatnonzero(first_of_run(streams[order])).tolist()
        if starts:
            sources = [self._sources[self.rules.streams[number]] for number in streams[order[starts]].tolist()]
            together = SideBySide(sources, [*starts, len(order)])
            places[order] = together.words(users[order])[:, 0, 0]
        return places

    def _admit(
        self, people: np.ndarray, places: np.ndarray, state: Members
    ) -> tuple[np.ndarray, Charges, Charges, Charges]:
        """Tell which of the distinct entries are within a person's limits, and what they charge: visits, streams."""
        admitted = np.ones(len(people), bool)
        joined = of_person = visits = Charges.none()
        if self.visits is not None:
            admitted &= state.visits.charged(places) < self.visits
        if self.streams_per_person is not None and self.streams_per_person < len(self.rules.streams):
            new = np.flatnonzero(admitted & (state.joined.charged(places) == 0))
            left = self.streams_per_person - state.streams.charged(people[new])
            over = place_in_run(people[new], np.lexsort((places[new], people[new]))) >= left
            admitted[new[over]] = False
            joined, of_person = Charges.of(places[new[~over]]), Charges.of(people[new[~over]])
        if self.visits is not None:
            visits = Charges.of(places[admitted])
        return admitted, visits, joined, of_person

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
        chosen = [np.flatnonzero(rows & (at <= min(self._last, self.steps.last_alike(step)))) for at, _, rows in parts]
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

    def describe_late(self, key: StepKey, batch: HolderBatch) -> Iterator[Any]:
        """Describe late batches, which no runner that keeps its watermark lets happen."""
        yield late_letter(self.steps, key.step, "late events", f"{len(batch.users)} people")

    def decode(self, key: bytes, segments: list[bytes]) -> Members:
        """Put the log together."""
        state = Members()
        for segment in segments:
            found: dict[str, Any] = unpack("members", 1, segment)
            step, stays = int(found.pop("step")), Stays.from_bytes(found.pop("stays"))
            charges = {name: Charges.from_bytes(data) for name, data in found.items()}
            state = Members(
                step=step,
                membership=state.membership.updated(stays, step),
                **{name: getattr(state, name).add(one) for name, one in charges.items()},
            )
        return state

    def encode(self, state: Members) -> list[bytes]:
        """Write one entry per person who is present, and per counter."""
        stays = state.membership.compact(state.step)
        charges = [counter.compact() for counter in (state.visits, state.joined, state.streams)]
        longest = max(len(stays), *map(len, charges))
        return [
            _segment(state.step, stays.slice(i, i + SEGMENT), *(one.slice(i, i + SEGMENT) for one in charges))
            for i in range(0, longest, SEGMENT)
        ]


def _segment(step: int, stays: Stays, visits: Charges, joined: Charges, streams: Charges) -> bytes:
    """Encode one entry of the log."""
    fields: dict[str, int | float | bytes | np.ndarray] = {"step": step, "stays": stays.to_bytes()}
    charges = {"visits": visits.to_bytes(), "joined": joined.to_bytes(), "streams": streams.to_bytes()}
    return pack("members", 1, fields | charges)
