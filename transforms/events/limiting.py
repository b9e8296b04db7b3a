"""Bound what one person contributes over the whole run: streams, and steps of streams, taken part in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from privstream.mechanisms.monitor.user_counters import Charges, UserCounters
from privstream.mechanisms.noise.routed import SourcesByName
from privstream.mechanisms.noise.side_by_side import SideBySide
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.mechanisms.sorted_runs import SEGMENT
from privstream.transforms.batches import HolderBatch, StepKey, seal_encoded, sealed_batch
from privstream.transforms.events.bounding import first_of_run, place_in_run, split_by_item
from privstream.transforms.events.domain import Domain
from privstream.transforms.events.late import late_in_streams
from privstream.transforms.events.limit_counter import LimitCounter
from privstream.transforms.stream_groups import InStreams, group_of
from privstream.transforms.timing.ordered import Handled, OrderedSteps
from privstream.transforms.timing.steps import Steps

NOBODY = UserCounters()
NOTHING = Charges.none()


@dataclass(frozen=True)
class Contributions:
    """How often each person has taken part, in all and per stream (keyed hash of person and stream)."""

    participations: UserCounters = NOBODY
    memberships: UserCounters = NOBODY
    streams: UserCounters = NOBODY


class BoundAcrossWindows(OrderedSteps, state="bound_across_windows"):
    """Per shard of people: leave out who has taken part in enough steps, or is new to a stream but in enough others.

    Steps are handled in order, and within a step a person's streams in an order that depends on nothing but the
    person, the step and the key. So what is left of a person's events depends on that person's events alone.

    Args:
        participations: steps of streams that one person takes part in at most, or None.
        streams: streams that one person takes part in at most, or None.
        by_people: whether what is left goes on by shard of people, and not by group of streams and shard of items.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        noise: NoiseSource,
        timer_offset: int,
        item_shards: int,
        participations: int | None = None,
        streams: int | None = None,
        domain: Domain | None = None,
        by_people: bool = False,
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.domain = domain
        self.noise = noise
        self.item_shards = item_shards
        self.by_people = by_people
        self.participations = participations
        self.streams = streams
        self._sources = SourcesByName(partial(noise.derive, "person in stream"))
        self.limited = LimitCounter("holdings", steps)

    def handle(
        self, key: bytes, step: int, batches: list[tuple[StepKey, InStreams[HolderBatch]]], state: Contributions
    ) -> Handled:
        """Admit each person to streams and steps while the limits allow it."""
        held = InStreams.join(HolderBatch, [batch for _, batch in batches])
        (people, in_stream), taking_part = _distinct(held.users, held.codes)
        lots = np.empty(len(people), np.uint64)
        order = np.argsort(in_stream, kind="stable")
        if len(order):
            starts = np.flatnonzero(first_of_run(in_stream[order]))
            sources = [self._sources[held.streams[code]] for code in in_stream[order[starts]].tolist()]
            together = SideBySide(sources, [*starts.tolist(), len(order)])
            lots[order] = together.words(people[order])[:, 0, 0]
        admitted, charges = self._admit(people, lots, state)
        kept = admitted[taking_part]
        self.limited.add(step, len(kept), int(len(kept) - kept.sum()))
        if self.by_people:
            rest = held.take(np.flatnonzero(kept)).to_bytes()
            outputs = [(key, seal_encoded(StepKey("", step, 0), rest))]
        else:
            outputs = list(self._by_group(step, held, kept))
        after = Contributions(*(counters.add(new) for counters, new in zip(vars(state).values(), charges, strict=True)))
        return Handled(after, _segment(charges) if any(map(len, charges)) else None, outputs)

    def _by_group(self, step: int, held: InStreams[HolderBatch], kept: np.ndarray) -> Iterator[tuple[bytes, bytes]]:
        """Send what is kept on by group of streams and shard of items; streams without rows go on too."""
        groups = np.array([int(group_of(stream)) for stream in held.streams])
        empty = held.without_rows
        group = groups[held.codes]
        for number in np.unique(groups).tolist():
            to = StepKey(str(number), step, 0)
            if nobody := [stream for stream in empty if group_of(stream) == to.stream]:
                yield from split_by_item(to, InStreams.empty(HolderBatch, nobody), self.item_shards)
            if len(rows := np.flatnonzero(kept & (group == number))):
                yield from split_by_item(to, held.take(rows), self.item_shards)

    def _admit(self, people: np.ndarray, lots: np.ndarray, state: Contributions) -> tuple[np.ndarray, list[Charges]]:
        """Tell who of the distinct (person, stream) pairs may take part, and what that charges."""
        admitted = np.ones(len(people), bool)
        memberships, streams, participations = NOTHING, NOTHING, NOTHING
        if self.streams is not None:
            new = np.flatnonzero(state.memberships.charged(lots) == 0)
            left = self.streams - state.streams.charged(people[new]).astype(np.int64)
            over = place_in_run(people[new], np.lexsort((lots[new], people[new]))) >= left
            admitted[new[over]] = False
            joined = new[~over]
            memberships, streams = Charges.of(lots[joined]), Charges.of(people[joined])
        if self.participations is not None:
            rows = np.flatnonzero(admitted)
            left = self.participations - state.participations.charged(people[rows]).astype(np.int64)
            over = place_in_run(people[rows], np.lexsort((lots[rows], people[rows]))) >= left
            admitted[rows[over]] = False
            participations = Charges.of(people[admitted])
        return admitted, [participations, memberships, streams]

    def unpack(self, record: bytes) -> InStreams[HolderBatch]:
        """Return the holdings in a sealed record."""
        return InStreams.from_bytes(HolderBatch, sealed_batch(record))

    def describe_late(self, key: StepKey, batch: InStreams[HolderBatch]) -> Iterator[Any]:
        """Describe late holdings by item."""
        return late_in_streams(self.steps, key, batch, self.domain)

    def decode(self, key: bytes, segments: list[bytes]) -> Contributions:
        """Add up the log."""
        state = Contributions()
        for segment in segments:
            parts = [Charges.from_bytes(part) for part in unpack("contributions", 1, segment).values()]  # type: ignore[arg-type]
            state = Contributions(
                *(counters.add(part) for counters, part in zip(vars(state).values(), parts, strict=True))
            )
        return state

    def encode(self, state: Contributions) -> list[bytes]:
        """Write one entry per person and counter."""
        compacted = [counters.compact() for counters in vars(state).values()]
        chunks = range(0, max(map(len, compacted)), SEGMENT)
        return [_segment([part.slice(i, i + SEGMENT) for part in compacted]) for i in chunks]


def _distinct(users: np.ndarray, codes: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return the distinct pairs, sorted, and for each row the number of its pair."""
    order = np.lexsort((codes, users))
    first = first_of_run(users[order], codes[order])
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(first) - 1
    return (users[order][first], codes[order][first]), number


def _segment(charges: list[Charges]) -> bytes:
    """Encode one entry of the log."""
    names = ("participations", "memberships", "streams")
    return pack("contributions", 1, {name: part.to_bytes() for name, part in zip(names, charges, strict=True)})
