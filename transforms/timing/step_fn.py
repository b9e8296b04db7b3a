"""The one stateful engine: each window of a key is handled once, in order, empty ones too, on a public clock."""

from __future__ import annotations

import secrets
import struct
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.direct.direct_userstate import DirectRuntimeState
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    RuntimeTimer,
    Timer,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.version import __version__
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.mechanism import pack, unpack
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.transforms.batches import Keyed, shard_key, take_arguments
from privstream.transforms.timing.steps import END_OF_TIME, MILLISECOND, Steps
from typing_extensions import override

SEED = b""
"""Starts the clock of a key."""
ONE_KEY = shard_key(0)
"""Key of a stage with one clock."""
STEP = struct.Struct(">q")
NO_TIME = Timestamp(micros=END_OF_TIME // MILLISECOND * MILLISECOND)

CACHED_KEYS = 64
LEAST_COMPACTION = 65_536  # bytes
NOTHING = -(1 << 62)  # before any step
NEVER = 1 << 62
PROGRESS = 3
"""The version of `KeyProgress`."""

BLOCKS = (1, 16, 256, 4096, 65_536)
UNBOUNDED_BLOCKS = BLOCKS[:3]
OVER = "over"
NOT_DECODED = object()

NOT_OF_THIS_VERSION = (SnapshotError, KeyError, IndexError, TypeError, ValueError, struct.error)
"""What decoding bytes of another layout may end in."""

WHAT_TO_DO = (
    "Another version of privstream wrote it, or a run with other options, or it is damaged. Nothing has been published "
    "from it. Take the version and the options of the run that wrote it, and resume from the same savepoint or "
    "checkpoint, or an earlier one; or begin a new run, which has a cost of its own"
)


def stepped(step: int, batch: bytes) -> bytes:
    """Return what `StepFn` takes under a key: a batch of one step."""
    return STEP.pack(step) + batch


def on_clock(step: int, batch: bytes) -> Keyed:
    """Return what `StepFn` takes where there is one key."""
    return ONE_KEY, stepped(step, batch)


class WithClock(beam.PTransform[Any, Any]):
    """Add to keyed records (see `stepped`) what starts the clock of each key of public `names`; goes before `StepFn`.

    Raises:
        ValueError: the steps have no end although the input is bounded: its watermark jumps to the end of time, and
            every window up to then would be published.
    """

    def __init__(self, steps: Steps, names: Iterable[bytes] = (ONE_KEY,)) -> None:
        super().__init__()
        self.steps, self.names = steps, tuple(names)

    @override
    def expand(self, records: PCollection[Any]) -> PCollection[Any]:
        if records.is_bounded and self.steps.end is None:
            raise ValueError("end must be given when the input is bounded: every window until end is published")
        once = records.pipeline | "Once" >> beam.Impulse()
        clocks = beam.FlatMap(lambda _, names: [(name, SEED) for name in names], self.names)
        seeds = once | "StartClocks" >> clocks.with_output_types(Keyed)
        return cast(PCollection[Any], (records, seeds) | "WithSeeds" >> beam.Flatten())


RULE = (
    "runner must not be BundleBasedDirectRunner: its clocks run ahead of its other timers, so that events would not "
    "count. DirectRunner takes it for a TestStream and for processing-time timers: name PrismRunner"
)


def check_runner(pipeline: beam.Pipeline) -> None:
    """Refuse the runner when a pipeline is built; what DirectRunner chooses is known when it runs (see `StepFn`)."""
    if isinstance(pipeline.runner, BundleBasedDirectRunner):
        raise ValueError(RULE)


@dataclass
class KeyProgress:
    """How far a key is: the small part of its state, read every time and written with every change."""

    version: bytes = b""  # random; new whenever any state of the key changes
    handled: int = NOTHING  # the last step handled
    last: int = NEVER  # the last step that will be handled, where that turns out only while the key lives
    waiting: int = 0  # bytes in the bag of records
    log: int = 0  # bytes in the log
    compacted: int = 0  # how many there were after it was last rewritten
    options: bytes = b""  # what stands for the options of the run


class Cells(NamedTuple):
    """States and timer of one key, as the runner hands them over."""

    waiting: Any
    progress: Any
    log: Any
    due: Any


@dataclass(eq=False)
class Known:
    """The state of a key, decoded: its progress, what the log describes, and the waiting records by step."""

    progress: KeyProgress
    state: Any = NOT_DECODED
    records: dict[int, list[bytes]] = field(default_factory=dict)


class Stepped(NamedTuple):
    """What handling a step gave: the state after it, and what is sent on.

    `change` returns what to append to the log, nothing if nothing has changed; None to write the state anew.
    """

    state: Any
    outputs: Iterable[Any] = ()
    change: Callable[[], bytes] | None = None


def unchanged() -> bytes:
    """Append nothing: the state is as it was."""
    return b""


class StepFn(beam.DoFn, ABC):
    """Handle each window of a key once, in order, empty ones too, when its decision time has come.

    A seed (see `WithClock`) starts the clock of a key: data neither start nor move it. So when a step is handled
    depends on the watermark alone. The clock is an event-time timer that goes from step to step; if the watermark
    jumps, others at the ends of blocks of steps, fired in any order, let one call handle many. Outputs have the last
    moment of their window as timestamp, at which the timer of the next step holds the watermark until it is handled.

    When the input of an unbounded clock ends, it stops at the end of a block: at most two blocks of `UNBOUNDED_BLOCKS`
    more are handled, as many as the position of the clock says: which steps have events must not show in how many are.

    Batches that have come wait in a bag. What a key remembers is an append-only log, which is rewritten when at least
    half of it is out of date. Decoded state is cached in the worker, under a random version that is written with every
    change: a bundle that was rolled back, or a key that moved, never meets a stale cache.

    A stage is a subclass with `state`: what names of states begin with, and no other's in the project: a runner may
    fuse two stages, and then confuses timers of one name. What it is made with are its attributes. It remembers the
    state of `mechanism`, or says itself what the first state is, and how one is encoded. Its counter of what it
    publishes has the name `counter`.
    """

    mechanism: Any
    noise: NoiseSource
    counter: ClassVar[str] = ""
    by_period = False
    """True: all steps of a period, or of the run, are handled when its last one is due."""
    options: bytes = b""
    """What stands for the options of the run, with which state is written: that of other options is refused."""

    def __init_subclass__(cls, *, state: str = "") -> None:
        """Declare states and timer of a stage, if it is one."""
        super().__init_subclass__()
        if state:
            _declare_states(cls, state)

    def __init__(self, *, steps: Steps, timer_offset: int, **given: Any) -> None:
        self.steps, self.timer_offset = steps, timer_offset
        take_arguments(self, given)
        if self.counter:
            self.published = Metrics.counter("privstream", self.counter)
        self.behind = Metrics.counter("privstream", "batches_behind")
        self.handled = Metrics.counter("privstream", "steps_handled")
        self._cache: OrderedDict[bytes, Known] = OrderedDict()
        self._before, self._last = steps.first - 1, steps.last
        self._blocks = BLOCKS[:1] if self.by_period else UNBOUNDED_BLOCKS if steps.end is None else BLOCKS

    @abstractmethod
    def step(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, ...]:
        """Handle one step, a function of the arguments alone: return `Stepped`, or state and outputs.

        `batches` are in an order that depends on nothing but their bytes.
        """

    def initial(self, key: bytes) -> Any:
        """Return the state before the first step."""
        return self.mechanism.initial_state()

    def begin_period(self, key: bytes, state: Any) -> Any:
        """Return the first state of a new period, given the last one of the period before: that before any step.

        What is carried over must be a function of what was published.
        """
        return self.initial(key)

    def snapshot(self, state: Any) -> bytes:
        """Encode a state."""
        return bytes(self.mechanism.snapshot(state))

    def restore(self, data: bytes) -> Any:
        """Decode a state."""
        return self.mechanism.restore(data)

    def decode(self, segments: list[bytes]) -> Any:
        """Return the state that a log describes: at least one segment."""
        return self.restore(segments[0])

    def encode(self, state: Any) -> list[bytes]:
        """Return a short log that describes a state."""
        return [self.snapshot(state)]

    def run(
        self, key: bytes, steps: range, batches: Mapping[int, list[bytes]], state: Any
    ) -> Iterator[tuple[int, Stepped]]:
        """Handle steps one after the other."""
        for step in steps:
            renewed = step > self.steps.first and step == self.steps.first_of_period(step)
            state = self.begin_period(key, state) if renewed else state
            found = Stepped(*self.step(key, step, batches.get(step, []), state))
            state = found.state
            yield step, found._replace(change=None) if renewed else found

    def block_end(self, level: int, handled: int) -> int:
        """Return the last step of the block, or of the period, that the step after `handled` is in."""
        if self.by_period:
            return min(self.steps.last_of_period(handled + 1), self._last)
        block = self._blocks[level]
        return min((handled + 1) // block * block + block - 1, self._last)

    def over(self, progress: KeyProgress, records: Mapping[int, list[bytes]]) -> int:
        """Return the last step of an unbounded clock whose input is complete, given all records that wait."""
        return self.block_end(len(self._blocks) - 1, progress.handled)

    def keep(self, element: Keyed, cells: Cells) -> None:
        """Start the clock, or keep a batch until its step is handled."""
        key, record = element
        known = self._open(key, cells, decode=record == SEED)
        progress = known.progress
        if record == SEED:  # it starts the clock, once
            if progress.handled == NOTHING:
                progress.handled = self._before
                if self.steps.end is None:
                    cells.due.set(Timestamp(micros=END_OF_TIME), dynamic_timer_tag=OVER)
                self._set_timers(cells.due, self._before, None)
        else:
            step: int = STEP.unpack_from(record)[0]
            if not self._before < step <= self._last:
                raise ValueError("step of a batch must be in the run")
            if step <= progress.handled or progress.handled >= progress.last:  # `CloseWindows` lets none come that late
                self.behind.inc()
                return
            cells.waiting.add(record)
            known.records.setdefault(step, []).append(record)
            progress.waiting += len(record)
        self._close(key, known, cells)

    def tick(self, key: bytes, time: Timestamp, cells: Cells) -> Iterator[Any]:
        """Handle all steps whose time has come; several timers, in any order, may have called for them."""
        known = self._open(key, cells)
        progress = known.progress
        before, last = progress.handled, min(self._last, progress.last)
        due = min(self.steps.latest(time.micros, self.timer_offset), last)
        if self.block_end(0, due - 1) != due:
            due = self.steps.first_of_period(due) - 1
        over = self.steps.end is None and time.micros >= NO_TIME.micros
        if before >= last or before == NOTHING or (before >= due and not over):
            if len(self._cache) < CACHED_KEYS:  # nothing has changed
                self._cache[key] = known
            return
        if over:  # the input of an unbounded clock has ended
            progress.last = self.over(progress, known.records)
            self._close(key, known, cells)
            return
        batches = {step: known.records.pop(step) for step in sorted(known.records) if step <= due}
        given = {step: sorted(record[STEP.size :] for record in some) for step, some in batches.items()}
        changes: list[bytes] | None = [] if progress.log else None
        for step, found in self.run(key, range(before + 1, due + 1), given, known.state):
            at = Timestamp(micros=self.steps.bounds_micros(step)[1] - 1)  # of its rows, as everywhere in Beam
            yield from (TimestampedValue(output, at) for output in found.outputs)
            known.state = found.state
            if found.change is None:
                changes = None
            elif changes is not None and due < last:
                changes.append(found.change())
        self.handled.inc(due - before)
        progress.handled = due
        if due < last:
            self._write_log(known, changes, cells)
            self._set_timers(cells.due, due, before)
        else:
            cells.log.clear()
            self.behind.inc(sum(map(len, known.records.values())))
            known.state, known.records, progress.log, progress.compacted = None, {}, 0, 0
        left = [record for some in known.records.values() for record in some]
        if 2 * (size := sum(map(len, left))) <= progress.waiting > 0:  # at least half of what waits has been handled
            cells.waiting.clear()
            for record in left:
                cells.waiting.add(record)
            progress.waiting = size
        self._close(key, known, cells)

    def _close(self, key: bytes, known: Known, cells: Cells) -> None:
        """Write how far a key is after a change, under a version of its own, and cache its state."""
        progress = known.progress
        progress.version, progress.options = secrets.token_bytes(12), self.options
        cells.progress.write(pack("progress", PROGRESS, vars(progress)))
        if known.state is not NOT_DECODED:
            self._cache[key] = known
            if len(self._cache) > CACHED_KEYS:
                self._cache.popitem(last=False)

    def _set_timers(self, timer: Any, handled: int, before: int | None) -> None:
        """Set the timers of the next step and of the ends of the blocks that it is in, farthest first, unless set.

        The timer of the next step, which is always set, holds the watermark for all steps to come. Beam's protocol and
        its portable runners know timers that hold the watermark before they fire; Beam's `set` for Python does not. So
        this one is encoded here, the way `set` of `bundle_processor.OutputTimer` does it.

        Raises:
            RuntimeError: Beam writes timers in another way than the release that privstream is pinned to.
        """
        for level in reversed(range(len(self._blocks))):
            target = self.block_end(level, handled)
            if before is not None and self.block_end(level, before) == target:
                continue
            fire = Timestamp(micros=self.steps.decision_time(target, self.timer_offset))
            if level or isinstance(timer, RuntimeTimer):  # that of a runner without holds
                timer.set(fire, dynamic_timer_tag=str(level))
                continue
            try:
                record = Timer(
                    user_key=timer._key,
                    dynamic_timer_tag=str(level),
                    windows=(timer._window,),
                    clear_bit=False,
                    fire_timestamp=fire,
                    hold_timestamp=Timestamp(micros=self.steps.bounds_micros(handled + 1)[1] - 1),
                    paneinfo=timer._paneinfo,
                )
                timer._timer_coder_impl.encode_to_stream(record, timer._output_stream, True)
                timer._output_stream.maybe_flush()
            except (AttributeError, TypeError) as error:
                raise RuntimeError(f"apache-beam must write timers as in 2.77, got {__version__}: {error}") from error

    def _open(self, key: bytes, cells: Cells, *, decode: bool = True) -> Known:
        """Return what a key knows, out of the cache if it is current; a state that is not there need not be decoded.

        An error leaves nothing cached.

        Raises:
            SnapshotError: some of it is missing, it cannot be decoded, or is of a run with other options. The bundle
                fails and changes nothing: a key never begins anew for that. The error quotes nothing.
        """
        try:
            data = cells.progress.read()
            progress = KeyProgress() if data is None else KeyProgress(**unpack("progress", PROGRESS, data))  # type: ignore[arg-type]
            if progress.options and self.options and progress.options != self.options:
                raise SnapshotError("options must be those of the run that wrote it")
            known = self._cache.pop(key, None)
            if known is not None and known.progress.version == progress.version:
                return known
            known = Known(progress)
            if not decode:
                return known
            segments, records = list(cells.log.read()), list(cells.waiting.read())
            for what, found, size in (("log", segments, progress.log), ("waiting records", records, progress.waiting)):
                if sum(map(len, found)) != size:
                    raise SnapshotError(f"{what} must have {size:,} bytes, got {sum(map(len, found)):,}")
            known.state = self.decode(segments) if segments else self.initial(key)
            for record in records:
                if (step := STEP.unpack_from(record)[0]) > progress.handled:
                    known.records.setdefault(step, []).append(record)
            return known
        except NOT_OF_THIS_VERSION as error:
            why = error if isinstance(error, SnapshotError) else f"it cannot be decoded ({type(error).__name__})"
            raise SnapshotError(f"state of {type(self).__name__} cannot be used: {why}. {WHAT_TO_DO}") from error

    def _write_log(self, known: Known, changes: list[bytes] | None, cells: Cells) -> None:
        """Append to the log, or write it anew."""
        progress = known.progress
        for segment in filter(None, changes or ()):
            cells.log.add(segment)
            progress.log += len(segment)
        if changes is None or progress.log > 2 * progress.compacted + LEAST_COMPACTION:
            cells.log.clear()
            segments = self.encode(known.state)
            for segment in segments:
                cells.log.add(segment)
            progress.log = progress.compacted = sum(map(len, segments))


def _declare_states(cls: type[StepFn], state: str) -> None:
    """Declare states and timer of a stage, with what it does when an element comes and when the timer fires."""
    waiting = BagStateSpec(f"{state}_waiting", BytesCoder())  # records of open steps, and some of handled ones
    progress = ReadModifyWriteStateSpec(f"{state}_progress", BytesCoder())  # encoded KeyProgress
    log = BagStateSpec(f"{state}_log", BytesCoder())  # what the key remembers: segments, in order
    due = TimerSpec(f"{state}_due", TimeDomain.WATERMARK)

    def process(
        self: StepFn,
        element: Keyed,
        waiting: Any = beam.DoFn.StateParam(waiting),
        progress: Any = beam.DoFn.StateParam(progress),
        log: Any = beam.DoFn.StateParam(log),
        due: Any = beam.DoFn.TimerParam(due),
    ) -> None:
        if isinstance(progress, DirectRuntimeState):  # what is added to a pipeline later may have made Beam choose it
            raise ValueError(RULE)
        self.keep(element, Cells(waiting, progress, log, due))

    @on_timer(due)
    def on_due(
        self: StepFn,
        key: Any = beam.DoFn.KeyParam,
        time: Any = beam.DoFn.TimestampParam,
        waiting: Any = beam.DoFn.StateParam(waiting),
        progress: Any = beam.DoFn.StateParam(progress),
        log: Any = beam.DoFn.StateParam(log),
        due: Any = beam.DoFn.TimerParam(due),
    ) -> Iterator[Any]:
        yield from self.tick(key, time, Cells(waiting, progress, log, due))

    specs = {"WAITING": waiting, "PROGRESS": progress, "LOG": log, "DUE": due}
    for name, value in {**specs, "process": process, "on_due": on_due}.items():
        setattr(cls, name, value)
