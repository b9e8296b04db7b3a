"""A stateful stage on a public clock: every step of every public stream is handled once, whatever the data."""

from __future__ import annotations

import secrets
import struct
from abc import abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from privstream.transforms.timing.holds import set_timer
from privstream.transforms.timing.receipts import NO_TIME
from privstream.transforms.timing.runner_check import check_state
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps

Outputs = Iterable[tuple[int, Any]]

SEED = b""
CACHED_KEYS = 64
CHUNK = 4096  # steps handled before their outputs are passed on
BLOCKS = (1, 16, 256, 4096, 65_536)
ENDLESS_BLOCKS = BLOCKS[:3]
OVER = "over"
NEVER = 1 << 62
_STEP = struct.Struct(">q")


class WithClock(beam.PTransform[Any, Any]):
    """Add to keyed records (see `stepped`) what starts the clock of each public stream; goes before `ClockedSteps`.

    Args:
        steps: with a first step; they may do without an end if the input is unbounded.
        streams: public names; keys are these names, encoded.
        apart: whether to reshuffle, so that the stage cannot be fused with others that read the same input. It must not
            be done to what a stage with timers emits: not every runner groups what comes after the end of time.

    Raises:
        ValueError: `start` is missing, or `end` is although the input is bounded: its watermark jumps to the end of
            time, and every window up to then would be published.
    """

    def __init__(self, steps: Steps, streams: tuple[str, ...], *, apart: bool = True) -> None:
        super().__init__()
        if steps.first is None:
            raise ValueError("start must be given: every window from start on is published")
        self.steps = steps
        self.streams = streams
        self.apart = apart

    def expand(self, records: PCollection[Any]) -> PCollection[Any]:
        """Start every clock once, by an element that holds the watermark back until it has been handled."""
        if records.is_bounded and self.steps.end is None:
            raise ValueError("end must be given when the input is bounded: every window until end is published")
        once = records.pipeline | "Once" >> beam.Impulse()
        seeds = once | "StartClocks" >> beam.ParDo(StartClocks(self.streams)).with_output_types(Keyed)
        together = (records, seeds) | "WithSeeds" >> beam.Flatten()
        return cast(PCollection[Any], together | "ApartFromOthers" >> beam.Reshuffle() if self.apart else together)


class StartClocks(beam.DoFn):
    """One seed for each stream."""

    def __init__(self, streams: tuple[str, ...]) -> None:
        self.streams = streams

    def process(self, _: bytes) -> Iterator[Keyed]:
        """Emit all seeds."""
        for stream in self.streams:
            yield stream.encode(), SEED


def stepped(step: int, batch: bytes) -> bytes:
    """Return what `ClockedSteps` takes under a stream's key: a batch of one step."""
    return _STEP.pack(step) + batch


@dataclass(frozen=True)
class Hand:
    """Where the clock of a key stands.

    Attributes:
        version: random; new whenever the state of the key changes.
        handled: the last step handled; before the first one, the one before it.
        over: the last step of an endless clock whose input has ended; NEVER before.
    """

    version: bytes
    handled: int
    over: int = NEVER

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack("clock hand", 2, vars(self))

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Hand | None:
        """Decode; None before the clock has been started."""
        return None if data is None else cls(**unpack("clock hand", 2, data))  # type: ignore[arg-type]


class ClockedSteps(beam.DoFn):
    """Handle every step of a key once and in order, empty ones too, when its decision time has come.

    A seed (see `WithClock`) starts the clock: event data neither start nor move it. So when a step is handled, and what
    is late, depends on the watermark alone. Late batches are set aside, never used.

    The clock is an event-time timer that goes from step to step. If the watermark jumps, further timers at the ends of
    blocks of steps let one call handle many of them; runners may fire them in any order. Outputs have the last moment
    of their window as timestamp, at which the timer of the next step holds the watermark until the step is handled.

    When the input of an endless clock ends, it stops at the end of a block: at most two blocks of `ENDLESS_BLOCKS` more
    are handled, as many as the position of the clock says.

    State: the hand of the clock, an encoded state of the subclass, and a bag of the batches of open steps. The decoded
    state is cached in the worker, under a random version that is written to state with every change: a bundle that was
    rolled back, or a key that moved, never meets a stale cache.

    A stage is a subclass with `state`, which the names of its states and its timer begin with, and no other's in the
    project: a runner may fuse two stages, and then confuses timers of one name.
    """

    def __init_subclass__(cls, *, state: str = "") -> None:
        """Declare states and timer of a stage."""
        super().__init_subclass__()
        if not state:
            return
        pending = BagStateSpec(f"{state}_pending", BytesCoder())  # batches of open steps
        hand = ReadModifyWriteStateSpec(f"{state}_hand", BytesCoder())  # encoded Hand
        memory = ReadModifyWriteStateSpec(f"{state}_memory", BytesCoder())  # encoded state of the subclass
        due = TimerSpec(f"{state}_due", TimeDomain.WATERMARK)  # tagged by level

        def process(
            self: ClockedSteps,
            element: Keyed,
            pending: Any = beam.DoFn.StateParam(pending),
            hand: Any = beam.DoFn.StateParam(hand),
            due: Any = beam.DoFn.TimerParam(due),
            stamp: Any = beam.DoFn.TimestampParam,
        ) -> Iterator[Any]:
            """Keep a batch until its step is due."""
            check_state(hand)
            yield from self.keep(element, pending, hand, due, stamp)

        @on_timer(due)
        def on_due(
            self: ClockedSteps,
            key: Any = beam.DoFn.KeyParam,
            time: Any = beam.DoFn.TimestampParam,
            pending: Any = beam.DoFn.StateParam(pending),
            hand: Any = beam.DoFn.StateParam(hand),
            memory: Any = beam.DoFn.StateParam(memory),
            due: Any = beam.DoFn.TimerParam(due),
        ) -> Iterator[Any]:
            """Handle the steps that are due."""
            yield from self.tick(key, time, pending, hand, memory, due)

        declared = {
            "PENDING": pending,
            "HAND": hand,
            "MEMORY": memory,
            "DUE": due,
            "process": process,
            "on_due": on_due,
        }
        for name, value in declared.items():
            setattr(cls, name, value)

    def __init__(self, *, steps: Steps, stage: int) -> None:
        if steps.first is None:
            raise ValueError("start must be given: every window from start on is published")
        self.steps = steps
        self.stage = stage
        self.late = Metrics.counter("privstream", "events_late")
        self.handled = Metrics.counter("privstream", "steps_handled")
        self._before = steps.first - 1
        self._last = steps.latest(END_OF_TIME, STAGES) if steps.end is None else steps.end - 1
        self.chunk = CHUNK
        self._blocks = ENDLESS_BLOCKS if steps.end is None else BLOCKS
        self._cache: OrderedDict[bytes, tuple[bytes, Any]] = OrderedDict()

    @abstractmethod
    def initial(self, key: bytes) -> Any:
        """Return the state before the first step."""

    @abstractmethod
    def snapshot(self, state: Any) -> bytes:
        """Encode a state."""

    @abstractmethod
    def restore(self, data: bytes) -> Any:
        """Decode a state."""

    @abstractmethod
    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        """Count a late batch, and describe it in the dead-letter output."""

    @abstractmethod
    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: Any
    ) -> tuple[Any, Outputs]:
        """Handle steps `first` to `last`: return the state after them, and (step, output) pairs.

        A function of the arguments alone, the same whether steps come together or one by one. `batches` has those of
        the steps that are not empty, in an order that depends on nothing but their bytes.
        """

    def keep(
        self, element: Keyed, pending: Any, hand: Any, timer: Any, stamp: Timestamp | None = None
    ) -> Iterator[Any]:
        """Start the clock, or keep a batch until its step is handled.

        A batch whose own timestamp, `stamp`, is not before its step is handled is late too. Where timestamps say when
        data arrived, a run that goes back to a checkpoint, with a watermark that has fallen behind, decides the same
        way again.
        """
        key, record = element
        now = Hand.from_bytes(hand.read())
        if record == SEED:
            if now is None:
                now = Hand(secrets.token_bytes(12), self._before)
                hand.write(now.to_bytes())
                if self.steps.end is None:
                    timer.set(Timestamp(micros=END_OF_TIME), dynamic_timer_tag=OVER)
                self._set_timers(timer, now.handled, None)
            return
        step = _STEP.unpack_from(record)[0]
        if not self._before < step <= self._last:
            raise ValueError("step of a batch must be in the run")
        came_late = stamp is not None and self.steps.decision_time(step, self.stage) <= stamp < NO_TIME
        if came_late or (now is not None and step <= now.handled):
            yield from self.set_aside(key, step, record[_STEP.size :])
        else:
            pending.add(record)

    def tick(self, key: bytes, time: Timestamp, pending: Any, hand: Any, memory: Any, timer: Any) -> Iterator[Any]:
        """Handle all steps whose time has come; several timers, in any order, may have called for them."""
        now = Hand.from_bytes(hand.read())
        if now is None:
            return
        if self.steps.end is None and time.micros >= END_OF_TIME // 1000 * 1000:
            hand.write(replace(now, over=self._block_end(len(self._blocks) - 1, now.handled)).to_bytes())
            return
        last = min(self._last, now.over)
        due = min(self.steps.latest(time.micros, self.stage), last)
        if due <= now.handled:
            return
        state = self._state(key, now, memory)
        batches = self._take(pending, now.handled, due)
        for first in range(now.handled + 1, due + 1, self.chunk):
            state, outputs = self.walk(key, first, min(first + self.chunk - 1, due), batches, state)
            for step, output in outputs:
                yield TimestampedValue(output, self.steps.last_moment(step))
        after = replace(now, version=secrets.token_bytes(12), handled=due)
        hand.write(after.to_bytes())
        self.handled.inc(due - now.handled)
        if due == last:
            memory.clear()
            return
        memory.write(self.snapshot(state))
        self._set_timers(timer, due, now.handled)
        self._cache[key] = after.version, state
        if len(self._cache) > CACHED_KEYS:
            self._cache.popitem(last=False)

    def _set_timers(self, timer: Any, handled: int, before: int | None) -> None:
        """Set the timers of the next step and of the ends of the blocks that it is in, farthest first, unless set.

        The timer of the next step, which is always set, holds the watermark for all steps to come.
        """
        for level in reversed(range(len(self._blocks))):
            target = self._block_end(level, handled)
            if before is None or self._block_end(level, before) != target:
                fire = self.steps.decision_time(target, self.stage)
                set_timer(timer, fire, hold=fire if level else self.steps.last_moment(target), tag=str(level))

    def _block_end(self, level: int, handled: int) -> int:
        """Return the last step of the block that the next step is in."""
        block = self._blocks[level]
        return min((handled + 1) // block * block + block - 1, self._last)

    def _state(self, key: bytes, now: Hand, memory: Any) -> Any:
        """Take the decoded state out of the cache if it is the current one; an error leaves nothing cached."""
        version, state = self._cache.pop(key, (None, None))
        if version == now.version:
            return state
        data = memory.read()
        return self.initial(key) if data is None else self.restore(data)

    def _take(self, pending: Any, handled: int, due: int) -> dict[int, list[bytes]]:
        """Return the batches of the steps that are due; rewrite the bag when at least half of it is out of date."""
        taken: dict[int, list[bytes]] = defaultdict(list)
        kept, size, size_kept = [], 0, 0
        for record in pending.read():
            step = _STEP.unpack_from(record)[0]
            size += len(record)
            if step > due:
                kept.append(record)
                size_kept += len(record)
            elif step > handled:
                taken[step].append(record[_STEP.size :])
        if size and 2 * size_kept <= size:
            pending.clear()
            for record in kept:
                pending.add(record)
        return {step: sorted(batches) for step, batches in taken.items()}
