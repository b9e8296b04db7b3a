"""A stateful stage on public clocks: every step of every public stream is handled once, whatever the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from privstream.transforms.timing.holds import set_timer
from privstream.transforms.timing.keyed_state import NOTHING, Cells, Decoded, KeyedState, Progress, declare_states
from privstream.transforms.timing.on_time_markers import NO_TIME
from privstream.transforms.timing.public_clock import SEED, STEP, by_clock, join_parts, parts_of
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps

Outputs = Iterable[tuple[int, Any]]
Batches = dict[int, list[bytes]]
States = dict[bytes, Any]

CHUNK = 4096  # steps handled before their outputs are passed on
BLOCKS = (1, 16, 256, 4096, 65_536)
ENDLESS_BLOCKS = BLOCKS[:3]
OVER = "over"
SEGMENT_BYTES = 1 << 20  # of a log of streams that share a clock, and at least one stream


class ClockedSteps(beam.DoFn, ABC):
    """Handle every step of a stream once and in order, empty ones too, when its decision time has come.

    A key is a stream; or, where `streams` are given, a clock that several of them share, each with a state of its own
    and handled by itself: methods get the name of a stream, and know nothing of others.

    A seed (see `WithClock`) starts the clock: event data neither start nor move it. So when a step is handled, and what
    is late, depends on the watermark alone. Late batches are set aside, never used.

    The clock is an event-time timer that goes from step to step. If the watermark jumps, further timers at the ends of
    blocks of steps let one call handle many of them; runners may fire them in any order. Outputs have the last moment
    of their window as timestamp, at which the timer of the next step holds the watermark until the step is handled.

    When the input of an endless clock ends, it stops at the end of a block: at most two blocks of `ENDLESS_BLOCKS` more
    are handled, as many as the position of the clock says.

    What a key remembers from step to step is the state of `mechanism`, which a subclass sets; or it says itself what
    the first state is, and how one is encoded. A stage is a subclass with `state`, see `declare_states`.
    """

    mechanism: Any
    chunk = CHUNK

    def __init_subclass__(cls, *, state: str = "") -> None:
        """Declare states and timer of a stage, if it is one."""
        super().__init_subclass__()
        if state:
            declare_states(cls, state)

    def __init__(self, *, steps: Steps, timer_offset: int, streams: tuple[str, ...] | None = None) -> None:
        if steps.first is None:
            raise ValueError("start must be given: every window from start on is published")
        self.steps = steps
        self.timer_offset = timer_offset
        self.clocks: dict[bytes, list[bytes]] | None = None
        if streams is not None:
            shared = by_clock(streams).items()
            self.clocks = {name.encode(): [stream.encode() for stream in some] for name, some in shared}
        self.keys = KeyedState(_StatesOfStreams(self))
        self.late = Metrics.counter("privstream", "events_late")
        self.handled = Metrics.counter("privstream", "steps_handled")
        self._before = steps.first - 1
        self._last = steps.latest(END_OF_TIME, STAGES) if steps.end is None else steps.end - 1
        self._blocks: tuple[int, ...] = ENDLESS_BLOCKS if steps.end is None else BLOCKS

    def initial(self, key: bytes) -> Any:
        """Return the state before the first step."""
        return self.mechanism.initial_state()

    def afresh(self, key: bytes, state: Any) -> Any:
        """Return the first state of a new period, given the last one of the period before: that before any step.

        What is carried over must be a function of what was published.
        """
        return self.initial(key)

    def snapshot(self, state: Any) -> bytes:
        """Encode a state."""
        data: bytes = self.mechanism.snapshot(state)
        return data

    def restore(self, data: bytes) -> Any:
        """Decode a state."""
        return self.mechanism.restore(data)

    @abstractmethod
    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Count a late batch, and describe it in the dead-letter output."""

    @abstractmethod
    def walk(self, key: bytes, first: int, last: int, batches: Batches, state: Any) -> tuple[Any, Outputs]:
        """Handle steps `first` to `last`: return the state after them, and (step, output) pairs.

        A function of the arguments alone, the same whether steps come together or one by one. `batches` has those of
        the steps that are not empty, in an order that depends on nothing but their bytes.
        """

    def count(self, steps: int) -> None:
        """Count steps that have been handled."""
        self.handled.inc(steps)

    def step_of(self, record: bytes) -> int:
        """Return the step that a record of `stepped` belongs to."""
        step: int = STEP.unpack_from(record)[0]
        return step

    def decode(self, key: bytes, segments: list[bytes]) -> Any:
        """Restore the one segment that there is after the first step."""
        return self.restore(segments[0]) if segments else self.initial(key)

    def encode(self, state: Any) -> list[bytes]:
        """Return a snapshot."""
        return [self.snapshot(state)]

    def changes(self, first: int, last: int, batches: Batches, state: Any) -> list[bytes]:
        """Return what to append to the log after steps `first` to `last`, for `decode`; nothing, to write it anew."""
        return []

    def logged(self, state: Any) -> Any:
        """Return the state, of which all is in the log now."""
        return state

    def keep(self, element: Keyed, cells: Cells, stamp: Timestamp | None = None) -> Iterator[Any]:
        """Start the clock, or keep a batch until its step is handled.

        A batch whose own timestamp, `stamp`, is not before its step is handled is late too. Where timestamps say when
        data arrived, a run that goes back to a checkpoint, with a watermark that has fallen behind, decides the same
        way again.
        """
        key, record = element
        if record == SEED:
            self._start(key, cells)
            return
        step, progress = self.step_of(record), Progress.from_bytes(cells.progress.read())
        if not self._before < step <= self._last:
            raise ValueError("step of a batch must be in the run")
        came_late = stamp is not None and self.steps.decision_time(step, self.timer_offset) <= stamp < NO_TIME
        if came_late or step <= progress.handled:
            for stream, batch in self._parts(key, record):
                yield from self.set_aside(stream, step, batch)
        else:
            self.keys.wait(key, record, progress, cells)

    def tick(self, key: bytes, time: Timestamp, cells: Cells) -> Iterator[Any]:
        """Handle all steps whose time has come; several timers, in any order, may have called for them."""
        progress = Progress.from_bytes(cells.progress.read())
        before = progress.handled
        if before >= min(self._last, progress.last):
            return  # it is over: an earlier version cleared the log, and did not write so
        decoded = self.keys.open(key, cells)
        if before == NOTHING:
            return
        if self.steps.end is None and time.micros >= END_OF_TIME // 1000 * 1000:
            self._end(key, decoded, cells)
            return
        last = min(self._last, decoded.progress.last)
        due = min(self.steps.latest(time.micros, self.timer_offset), last)
        if due <= before:
            self.keys.cache(key, decoded)
            return
        batches = self._sorted(key, dict(decoded.take_until(due)))
        states: States = decoded.state
        renewed, last_moment = False, cache(self.steps.last_moment)
        for first, until in self._chunks(before + 1, due):
            renewed |= self.steps.starts_afresh(first - 1, first)
            for stream in states:
                if self.steps.starts_afresh(first - 1, first):
                    states[stream] = self.afresh(stream, states[stream])
                states[stream], outputs = self.walk(stream, first, until, batches[stream], states[stream])
                for step, output in outputs:
                    yield TimestampedValue(output, last_moment(step))
        decoded.progress = replace(decoded.progress, handled=due)
        self.count((due - before) * len(states))
        if due < last:
            self._write(decoded, [] if renewed else self._changes(before + 1, due, batches, states), cells)
            decoded.state = {stream: self.logged(state) for stream, state in states.items()}
            self._set_timers(cells.due, due, before)
        else:
            decoded.state = None
            cells.log.clear()
            decoded.progress = replace(decoded.progress, log=0, compacted=0)
        self.keys.close(key, decoded, cells)

    def streams_of(self, key: bytes) -> list[bytes]:
        """Return the streams of a key."""
        if self.clocks is None:
            return [key]
        if key not in self.clocks:
            raise SnapshotError("state must be of clocks that streams share, and of a run with the same streams")
        return self.clocks[key]

    def _parts(self, key: bytes, record: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Return the streams of a record, each with its batch."""
        batch = record[STEP.size :]
        return [(key, batch)] if self.clocks is None else parts_of(batch)

    def _sorted(self, key: bytes, records: dict[int, list[bytes]]) -> defaultdict[bytes, Batches]:
        """Return the batches of each stream and step."""
        found: defaultdict[bytes, Batches] = defaultdict(dict)
        for step, some in records.items():
            for record in some:
                for stream, batch in self._parts(key, record):
                    found[stream].setdefault(step, []).append(batch)
        for batches in found.values():
            for some in batches.values():
                some.sort()
        return found

    def _changes(self, first: int, last: int, batches: defaultdict[bytes, Batches], states: States) -> list[bytes]:
        """Return what to append to the log for all streams; nothing, to write it anew."""
        found = [(stream, self.changes(first, last, batches[stream], state)) for stream, state in states.items()]
        if not all(segments for _, segments in found):
            return []
        if self.clocks is None:
            return [segment for _, segments in found for segment in segments]
        return list(_shared_log((stream, segment) for stream, segments in found for segment in segments))

    def _chunks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Return the steps to handle, in runs that are short, and in which nothing starts afresh."""
        while first <= last:
            until = min(first + self.chunk - 1, last, self.steps.last_alike(first))
            yield first, until
            first = until + 1

    def _write(self, decoded: Decoded, changes: list[bytes], cells: Cells) -> None:
        """Write the state after some steps, or what they have changed in one that was written before."""
        if not changes or not decoded.progress.log:
            self.keys.rewrite(decoded, cells)
            return
        for segment in changes:
            self.keys.append(decoded, segment, cells)

    def _start(self, key: bytes, cells: Cells) -> None:
        """Start the clock, once."""
        decoded = self.keys.open(key, cells)
        if decoded.progress.handled != NOTHING:
            self.keys.cache(key, decoded)
            return
        decoded.progress = replace(decoded.progress, handled=self._before)
        self.keys.close(key, decoded, cells)
        if self.steps.end is None:
            cells.due.set(Timestamp(micros=END_OF_TIME), dynamic_timer_tag=OVER)
        self._set_timers(cells.due, self._before, None)

    def _end(self, key: bytes, decoded: Decoded, cells: Cells) -> None:
        """Say at which step an endless clock stops, now that its input has ended."""
        last = self._block_end(len(self._blocks) - 1, decoded.progress.handled)
        decoded.progress = replace(decoded.progress, last=last)
        self.keys.close(key, decoded, cells)

    def _set_timers(self, timer: Any, handled: int, before: int | None) -> None:
        """Set the timers of the next step and of the ends of the blocks that it is in, farthest first, unless set.

        The timer of the next step, which is always set, holds the watermark for all steps to come.
        """
        for level in reversed(range(len(self._blocks))):
            target = self._block_end(level, handled)
            if before is None or self._block_end(level, before) != target:
                fire = self.steps.decision_time(target, self.timer_offset)
                set_timer(timer, fire, hold=fire if level else self.steps.last_moment(target), tag=str(level))

    def _block_end(self, level: int, handled: int) -> int:
        """Return the last step of the block that the next step is in."""
        block = self._blocks[level]
        return min((handled + 1) // block * block + block - 1, self._last)


class _StatesOfStreams:
    """What a clock remembers: the state of each of its streams, by name."""

    def __init__(self, stage: ClockedSteps) -> None:
        self.stage = stage

    def step_of(self, record: bytes) -> int:
        """Return the step that a record belongs to."""
        return self.stage.step_of(record)

    def decode(self, key: bytes, segments: list[bytes]) -> States:
        """Return the states that a log describes."""
        if self.stage.clocks is None:
            return {key: self.stage.decode(key, segments)}
        logs: dict[bytes, list[bytes]] = {stream: [] for stream in self.stage.streams_of(key)}
        for segment in segments:
            found: dict[str, Any] = unpack("streams of a clock", 1, segment)
            for stream, part in parts_of(found["parts"]):
                if stream not in logs:
                    raise SnapshotError("state must be of a run with the same streams")
                logs[stream].append(part)
        if segments and not all(logs.values()):
            raise SnapshotError("state must be of a run with the same streams")
        return {stream: self.stage.decode(stream, log) for stream, log in logs.items()}

    def encode(self, states: States) -> list[bytes]:
        """Return a short log."""
        parts = [(stream, part) for stream, state in states.items() for part in self.stage.encode(state)]
        return [part for _, part in parts] if self.stage.clocks is None else list(_shared_log(parts))


def _shared_log(parts: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Put what belongs to streams into segments of some size."""
    some: list[tuple[bytes, bytes]] = []
    size = 0
    for stream, part in parts:
        some.append((stream, part))
        size += len(part)
        if size >= SEGMENT_BYTES:
            yield pack("streams of a clock", 1, {"parts": join_parts(some)})
            some, size = [], 0
    if some:
        yield pack("streams of a clock", 1, {"parts": join_parts(some)})


class SingleSteps(ClockedSteps):
    """Handle steps one by one: for stages that gain nothing by a walk over many."""

    @abstractmethod
    def advance(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, Iterable[Any]]:
        """Handle one step: return the state after it, and its outputs."""

    def walk(self, key: bytes, first: int, last: int, batches: Batches, state: Any) -> tuple[Any, Outputs]:
        """Handle steps `first` to `last`."""
        outputs: list[tuple[int, Any]] = []
        for step in range(first, last + 1):
            state, found = self.advance(key, step, batches.get(step, []), state)
            outputs += ((step, output) for output in found)
        return state, outputs
