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
    seal_encoded,
    string_buffers,
)
from privstream.transforms.events.bounding import first_of_run
from privstream.transforms.events.late import late_in_streams
from privstream.transforms.events.shards import people_key
from privstream.transforms.stream_groups import InStreams
from privstream.transforms.timing.public_clock import on_clocks, stepped
from privstream.transforms.timing.step_batches import OnTimeBatches
from privstream.transforms.timing.steps import Steps

ONE_RUN = b""
"""Key of tests that go over all streams."""


class MeetRules(OnTimeBatches, state="meet_rules"):
    """Per group of streams, step and shard of people: events in, out who meets which rule: holdings of its number.

    They go on keyed by group of streams and step, or `by_people`, for `BoundAcrossWindows`, by shard of people.
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
        events = InStreams.from_bytes(EventBatch, batch)
        self.late.inc(len(events.users))
        yield from late_in_streams(self.steps, key, events, None)

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Find who meets which rule in one step of one shard of people."""
        events = InStreams.join(EventBatch, [InStreams.from_bytes(EventBatch, batch) for batch in batches])
        rows, rules = self.meet(events.people(), events.batch.items)
        if not len(rows):
            return
        met = HolderBatch(events.users[rows], rules.astype(np.uint64), np.zeros(len(rows), np.uint16), Names.none())
        held = InStreams.sort(events.streams, events.codes[rows], met).with_rows()
        if self.by_people:
            yield people_key(key.shard), seal_encoded(key, held.to_bytes())
        else:
            yield key._replace(shard=0).to_bytes(), held.to_bytes()

    def meet(self, people: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct pairs of a person and the number of a rule that one of their events meets.

        A person is given by the number of a row, int64. Pairs are in the order of `people`, and then of rules.
        """
        first = np.searchsorted(self._items, items, "left")
        times = np.searchsorted(self._items, items, "right") - first
        rows = np.repeat(np.arange(len(items)), times)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
        _, each = np.unique(people, return_index=True)
        found = np.concatenate([rows, np.tile(each, len(self._for_all))])
        rules = np.concatenate([self._rules[first[rows] + within], np.repeat(self._for_all, len(each))])
        order = np.lexsort((rules, people[found]))
        found, rules = found[order], rules[order]
        distinct = first_of_run(people[found], rules)
        return found[distinct], rules[distinct]


class CountMeeting(beam.DoFn):
    """Count who meets each rule; a person is in one batch of a step only, so counts of batches may be added."""

    def __init__(self, rules: int, *, by_stream: bool) -> None:
        self.rules = rules
        self.by_stream = by_stream

    def process(self, element: Keyed) -> Iterator[Keyed]:
        """Count one batch."""
        step, met = StepKey.from_bytes(element[0]).step, InStreams.from_bytes(HolderBatch, element[1])
        cells = met.codes * self.rules + met.batch.items.astype(np.int64)
        counts = np.bincount(cells, minlength=len(met.streams) * self.rules).reshape(-1, self.rules)
        if self.by_stream:
            each = zip(met.streams, counts, strict=True)
            yield from on_clocks((stream, step, encode_counts((stream,), row)) for stream, row in each)
        else:
            yield ONE_RUN, stepped(step, encode_counts(met.streams, counts))


def encode_counts(streams: tuple[str, ...], counts: np.ndarray) -> bytes:
    """Encode how many people meet each rule, (streams, rules)."""
    offsets, text = string_buffers(pa.array(streams, pa.large_string()))
    return pack("alert counts", 2, {"offsets": offsets, "text": text, "counts": counts.astype(np.int64).ravel()})


def decode_counts(data: bytes) -> tuple[list[str], np.ndarray]:
    """Decode streams and counts."""
    found: dict[str, Any] = unpack("alert counts", 2, data)
    names = Names(np.arange(len(found["offsets"]) - 1, dtype=np.uint64), found["offsets"], found["text"])
    streams: list[str] = names.to_arrow().to_pylist()
    return streams, found["counts"].reshape(len(streams), -1)
