"""Which events say that a person enters, and which that they leave; and each person's last word in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.metrics.metric import Metrics
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import (
    EventBatch,
    HolderBatch,
    Keyed,
    Names,
    StepKey,
    decode,
    seal,
    string_buffers,
)
from privstream.transforms.events.bounding import first_of_run
from privstream.transforms.events.late import late_letter
from privstream.transforms.events.shards import people_key, split_by_shard
from privstream.transforms.events.streams import check_texts, stream_numbers
from privstream.transforms.timing.on_time_markers import KeyedBatch
from privstream.transforms.timing.step_batches import OnTimeBatches
from privstream.transforms.timing.steps import Steps, to_micros

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
            present = -(-(times - steps.origin + self.timeout) // steps.size) - 1 - step
        return np.where(kinds == ENTER, np.maximum(present, 0), 0).astype(np.uint16)


def _among(items: pa.Array, values: tuple[str, ...]) -> np.ndarray:
    found: np.ndarray = pc.is_in(items, pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
    return found


class SplitPresence(beam.DoFn):
    """Turn Arrow batches into `EventBatch`es per step and shard of people, all streams together.

    People become keyed 64-bit hashes; an item is 2 * stream + kind. What lies outside of the public steps or streams,
    or neither enters nor leaves, is counted and left out.
    """

    def __init__(self, *, steps: Steps, rules: PresenceRules, noise: NoiseSource, shards: int) -> None:
        self.steps = steps
        self.rules = rules
        self.noise = noise
        self.shards = shards
        self.events = Metrics.counter("privstream", "events")
        self.usable = Metrics.counter("privstream", "events_usable")
        self.outside = Metrics.counter("privstream", "events_outside_run")
        self.other_streams = Metrics.counter("privstream", "events_of_other_streams")
        self.other_values = Metrics.counter("privstream", "events_of_other_values")

    def setup(self) -> None:
        """Derive the hash, which depends on nothing but the key."""
        self._user_hash = self.noise.derive("user hash")

    def process(self, batch: pa.RecordBatch) -> Iterator[KeyedBatch]:
        """Split one batch."""
        self.events.inc(batch.num_rows)
        streams = stream_numbers(batch["stream"], self.rules.streams)
        kinds = self.rules.kinds(batch["item"]) if self.rules.by_item else np.full(batch.num_rows, ENTER)
        times = batch["time"].to_numpy()
        rows, steps = self.steps.assign(times)
        meant = (streams >= 0) & (kinds >= 0)
        self.other_streams.inc(int((streams < 0).sum()))
        self.other_values.inc(int(((streams >= 0) & (kinds < 0)).sum()))
        self.outside.inc(int(meant.sum() - meant[rows].sum()))
        keep = meant[rows]
        rows, steps = rows[keep], steps[keep]
        self.usable.inc(len(rows))
        if not len(rows):
            return
        users = self._user_hash.hash_bytes(*reversed(string_buffers(batch["user"])))[rows]
        items, times = (2 * streams + kinds)[rows].astype(np.uint64), times[rows]
        yield from split_by_shard(users, items, times, steps, self.shards)


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

    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Find the last event of each person."""
        events = EventBatch.join([decode(EventBatch, batch) for batch in batches])
        rows = last_presence(events.users, events.items, events.times)
        items = events.items[rows]
        kinds, streams = (items & np.uint64(1)).astype(np.int64), items >> np.uint64(1)
        stay = self.rules.stay(self.steps, key.step, kinds, events.times[rows])
        said = HolderBatch(events.users[rows], streams, stay, Names.none())
        yield people_key(key.shard), seal(key, said)

    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count late events, and describe them by stream, window and kind, with how many there were."""
        items = decode(EventBatch, batch).items
        self.late.inc(len(items))
        for item, number in zip(*(part.tolist() for part in np.unique(items, return_counts=True)), strict=True):
            name = self.rules.streams[item >> 1]
            record = f"{KINDS[item & 1]} ({number} events)"
            yield late_letter(self.steps, key.step, "late events", record, name)
