"""A stateful stage that handles the steps of one key strictly in order, and remembers what it did to people."""

from __future__ import annotations

import heapq
import secrets
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import HolderBatch, Keyed, StepKey, sealed_key, unseal
from privstream.transforms.timing.runner_check import check_state
from privstream.transforms.timing.steps import Steps

CACHED_KEYS = 64
LEAST_COMPACTION = 65_536  # bytes
NONE = -1


@dataclass(frozen=True)
class Head:
    """The small part of a key's state, read and written every time.

    Attributes:
        version: random; new whenever any state of the key changes.
        decided: the last step handled, or NONE.
        pending: bytes in the bag of pending batches, and
        handled: how many of them belong to steps that have been handled.
        log: bytes in the log, and
        compacted: how many there were after its last compaction.
    """

    version: bytes = b""
    decided: int = NONE
    pending: int = 0
    handled: int = 0
    log: int = 0
    compacted: int = 0

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack("head", 1, vars(self))

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Head:
        """Decode; nothing stored yet is the initial head."""
        return cls() if data is None else cls(**unpack("head", 1, data))  # type: ignore[arg-type]


@dataclass(eq=False)
class Memory:
    """A key's state, decoded: what the log says, and the pending batches (encoded) by step; `steps` is a heap."""

    version: bytes
    ledger: Any
    pending: dict[int, list[bytes]] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)

    def add(self, step: int, record: bytes) -> None:
        """Add a pending batch."""
        if step not in self.pending:
            self.pending[step] = []
            heapq.heappush(self.steps, step)
        self.pending[step].append(record)

    def take_until(self, last: int) -> Iterator[tuple[int, list[bytes]]]:
        """Take out the pending batches of each step up to `last`, in order."""
        while self.steps and self.steps[0] <= last:
            step = heapq.heappop(self.steps)
            yield step, self.pending.pop(step)


class OrderedSteps(beam.DoFn):
    """Handle the pending batches of each step once, in order of steps, when the step's decision time has come.

    What must be remembered for ever is a *ledger*, kept in state as an append-only log: a step writes only what it
    changed. The log and the bag of pending batches are rewritten when at least half of them is out of date, so that
    all writing is amortised over what changed. Decoded state is cached in the worker, under a random version that is
    written to state with every change: a bundle that was rolled back, or a key that moved, never meets a stale cache.

    Batches of a step that has been handled are late: counted, described in the dead-letter output, never used.

    A stage is a subclass with `state`, which the names of its states and its timer begin with, and no other's in the
    project: a runner may fuse two stages, and then confuses timers of one name.
    """

    def __init_subclass__(cls, *, state: str = "") -> None:
        """Declare states and timer of a stage."""
        super().__init_subclass__()
        if not state:
            return
        pending = BagStateSpec(f"{state}_pending", BytesCoder())  # step key and batch of open steps
        log = BagStateSpec(f"{state}_log", BytesCoder())  # segments of the ledger, in order
        head = ReadModifyWriteStateSpec(f"{state}_head", BytesCoder())  # encoded Head
        due = TimerSpec(f"{state}_due", TimeDomain.WATERMARK)  # tagged by step

        def process(
            self: OrderedSteps,
            element: Keyed,
            pending: Any = beam.DoFn.StateParam(pending),
            head: Any = beam.DoFn.StateParam(head),
            due: Any = beam.DoFn.TimerParam(due),
        ) -> Iterator[Any]:
            """Keep a batch until its step is due."""
            check_state(head)
            yield from self.keep(element, pending, head, due)

        @on_timer(due)
        def on_due(
            self: OrderedSteps,
            key: Any = beam.DoFn.KeyParam,
            time: Any = beam.DoFn.TimestampParam,
            pending: Any = beam.DoFn.StateParam(pending),
            log: Any = beam.DoFn.StateParam(log),
            head: Any = beam.DoFn.StateParam(head),
        ) -> Iterator[Any]:
            """Handle the steps that are due."""
            yield from self.handle_due(key, time, pending, log, head)

        declared = {"PENDING": pending, "LOG": log, "HEAD": head, "DUE": due, "process": process, "on_due": on_due}
        for name, value in declared.items():
            setattr(cls, name, value)

    def __init__(self, *, steps: Steps, stage: int) -> None:
        self.steps = steps
        self.stage = stage
        self.late = Metrics.counter("privstream", "events_late")
        self.handled = Metrics.counter("privstream", "steps_handled")
        self._cache: OrderedDict[bytes, Memory] = OrderedDict()

    @abstractmethod
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, HolderBatch]], ledger: Any) -> Handled:
        """Handle one step: a function of the arguments alone."""

    @abstractmethod
    def describe_late(self, key: StepKey, batch: HolderBatch) -> Iterator[Any]:
        """Describe a late batch in the dead-letter output."""

    @abstractmethod
    def restore(self, segments: list[bytes]) -> Any:
        """Return the ledger that the log describes."""

    @abstractmethod
    def compact(self, ledger: Any) -> list[bytes]:
        """Return a short log that describes the ledger."""

    def keep(self, element: tuple[bytes, bytes], pending: Any, head: Any, timer: Any) -> Iterator[Any]:
        """Keep a batch until its step is handled."""
        key, record = element
        step = sealed_key(record).step
        now = Head.from_bytes(head.read())
        if step <= now.decided:
            batch = unseal(record)
            self.late.inc(len(batch.users))
            yield from self.describe_late(sealed_key(record), batch)
            return
        pending.add(record)
        timer.set(self.steps.decision_time(step, self.stage), dynamic_timer_tag=str(step))  # some runners keep all
        memory = self._take(key, now)
        now = replace(now, version=secrets.token_bytes(12), pending=now.pending + len(record))
        head.write(now.to_bytes())
        if memory is not None:
            memory.add(step, record)
            self._keep(key, memory, now)

    def handle_due(self, key: bytes, time: Timestamp, pending: Any, log: Any, head: Any) -> Iterator[Any]:
        """Handle all steps whose time has come; runners may deliver the timers of a key in any order."""
        now = Head.from_bytes(head.read())
        memory = self._take(key, now) or self._load(pending, log, now)
        handled = 0
        for step, records in memory.take_until(self.steps.latest(time.micros, self.stage)):
            result = self.handle(key, step, [(sealed_key(record), unseal(record)) for record in records], memory.ledger)
            at = self.steps.decision_time(step, self.stage)  # the timer that fires may be that of a later step
            yield from (TimestampedValue(output, at) for output in result.outputs)
            memory.ledger = result.ledger
            if result.segment is not None:
                log.add(result.segment)
                now = replace(now, log=now.log + len(result.segment))
            now = replace(now, decided=step, handled=now.handled + sum(map(len, records)))
            handled += 1
        if handled:
            self.handled.inc(handled)
            now = replace(self._tidy(now, memory, pending, log), version=secrets.token_bytes(12))
            head.write(now.to_bytes())
        self._keep(key, memory, now)

    def _tidy(self, now: Head, memory: Memory, pending: Any, log: Any) -> Head:
        """Rewrite what is mostly out of date."""
        if 2 * now.handled >= now.pending:
            pending.clear()
            for records in memory.pending.values():
                for record in records:
                    pending.add(record)
            now = replace(now, pending=now.pending - now.handled, handled=0)
        if now.log > 2 * now.compacted + LEAST_COMPACTION:
            log.clear()
            segments = self.compact(memory.ledger)
            for segment in segments:
                log.add(segment)
            size = sum(map(len, segments))
            now = replace(now, log=size, compacted=size)
        return now

    def _take(self, key: bytes, now: Head) -> Memory | None:
        """Take the decoded state out of the cache, if it is the current one; an error leaves nothing cached."""
        memory = self._cache.pop(key, None)
        return memory if memory is not None and memory.version == now.version else None

    def _load(self, pending: Any, log: Any, now: Head) -> Memory:
        """Decode the state."""
        memory = Memory(now.version, self.restore(list(log.read())))
        for record in pending.read():
            step = sealed_key(record).step
            if step > now.decided:
                memory.add(step, record)
        return memory

    def _keep(self, key: bytes, memory: Memory, now: Head) -> None:
        """Cache the decoded state as of `now`, for so many keys."""
        memory.version = now.version
        self._cache[key] = memory
        if len(self._cache) > CACHED_KEYS:
            self._cache.popitem(last=False)


@dataclass(frozen=True, eq=False)
class Handled:
    """What handling one step gave: the ledger after it, what to append to the log, and the outputs."""

    ledger: Any
    segment: bytes | None
    outputs: Iterable[Any]
