"""Who meets which rule in a window: each person once per rule, and how many they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    Names,
    StepKey,
    decode,
    seal_encoded,
    string_buffers,
)
from privstream.transforms.events.bounding import first_of_run
from privstream.transforms.events.late import late_events
from privstream.transforms.events.shards import people_key
from privstream.transforms.stream_groups import InStreams
from privstream.transforms.timing.public_clock import stepped
from privstream.transforms.timing.step_batches import OnTimeBatches
from privstream.transforms.timing.steps import Steps

ONE_RUN = b""
"""Key of tests that go over all streams."""


class MeetRules(OnTimeBatches, state="meet_rules"):
    """Per stream, step and shard of people: events in, and out who meets which rule, as holdings of the rule's number.

    They go on keyed by stream and step, or `by_people`, for `BoundAcrossWindows`, by shard of people.
    """

    def __init__(
        self, *, rules: tuple[AlertRule, ...], steps: Steps, timer_offset: int, noise: NoiseSource, by_people: bool
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.rules = rules
        self.noise = noise
        self.by_people = by_people

    def setup(self) -> None:
        """Hash the rules' items, as `SplitEvents` does those of events."""
        pairs = [(number, item) for number, rule in enumerate(self.rules) for item in rule.items or ()]
        texts = pa.array([item for _, item in pairs], pa.string())
        items = self.noise.derive("item hash").hash_bytes(*reversed(string_buffers(texts)))
        order = np.argsort(items, kind="stable")
        self._items = items[order]
        self._rules = np.array([number for number, _ in pairs], np.int64)[order]
        self._for_all = np.array([number for number, rule in enumerate(self.rules) if rule.items is None], np.int64)

    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe late events."""
        events = decode(EventBatch, batch)
        self.late.inc(len(events.users))
        yield from late_events(self.steps, key, events, None)

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Find who meets which rule in one step of one shard of people."""
        events = EventBatch.join([decode(EventBatch, batch) for batch in batches])
        users, rules = self.meet(events.users, events.items)
        if not len(users):
            return
        met = HolderBatch(users, rules.astype(np.uint64), np.zeros(len(users), np.uint16), Names.none())
        if self.by_people:
            yield people_key(key.shard), seal_encoded(key, InStreams.of(key.stream, met).to_bytes())
        else:
            yield StepKey(key.stream, key.step, 0).to_bytes(), InStreams.of(key.stream, met).to_bytes()

    def meet(self, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct pairs of a person (uint64) and the number of a rule that one of their events meets."""
        first = np.searchsorted(self._items, items, "left")
        times = np.searchsorted(self._items, items, "right") - first
        rows = np.repeat(np.arange(len(items)), times)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
        people = np.unique(users)
        found_users = np.concatenate([users[rows], np.tile(people, len(self._for_all))])
        found_rules = np.concatenate([self._rules[first[rows] + within], np.repeat(self._for_all, len(people))])
        order = np.lexsort((found_rules, found_users))
        found_users, found_rules = found_users[order], found_rules[order]
        distinct = first_of_run(found_users, found_rules)
        return found_users[distinct], found_rules[distinct]


class CountMeeting(beam.DoFn):
    """Count who meets each rule; a person is in one batch of a step only, so counts of batches may be added."""

    def __init__(self, rules: int, *, by_stream: bool) -> None:
        self.rules = rules
        self.by_stream = by_stream

    def process(self, element: Keyed) -> Iterator[Keyed]:
        """Count one batch."""
        key = StepKey.from_bytes(element[0])
        for name, met in InStreams.from_bytes(HolderBatch, element[1]).each():
            counts = np.bincount(met.items.astype(np.int64), minlength=self.rules)
            stream = name.encode()
            yield stream if self.by_stream else ONE_RUN, stepped(key.step, encode_counts(stream, counts))


def encode_counts(stream: bytes, counts: np.ndarray) -> bytes:
    """Encode how many people of a stream meet each rule."""
    return pack("alert counts", 1, {"stream": stream, "counts": counts.astype(np.int64)})


def decode_counts(data: bytes) -> tuple[str, np.ndarray]:
    """Decode stream and counts."""
    fields = unpack("alert counts", 1, data)
    return bytes(fields["stream"]).decode(), np.asarray(fields["counts"])  # type: ignore[arg-type]
