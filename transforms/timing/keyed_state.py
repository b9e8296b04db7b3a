"""The engine of keyed state: the records of a key wait until their step is due, and each step is handled once."""

from __future__ import annotations

import heapq
import inspect
import secrets
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple, Protocol

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner, SwitchingDirectRunner
from apache_beam.runners.direct.direct_userstate import DirectRuntimeState
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, StateSpec, TimerSpec, on_timer
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from typing_extensions import override

CACHED_KEYS = 64
LEAST_COMPACTION = 65_536  # bytes
PARTS = 16  # bags in which records wait; the first has the name that the only one once had
PART_BYTES = 4 << 20
NOTHING = -2  # before the step that is before the first one
NEVER = 1 << 62
PROGRESS = 1
"""The version of `Progress`."""

NOT_OF_THIS_VERSION = (KeyError, IndexError, TypeError, ValueError, struct.error)
"""What decoding bytes of another layout may end in."""

WHAT_TO_DO = (
    "Another version of privstream wrote it, or a run with other options, or it is damaged. Nothing has been published "
    "from it. Take the version and the options of the run that wrote it, and resume from the same savepoint or "
    "checkpoint, or an earlier one; or begin a new run, which has a cost of its own"
)


@dataclass(frozen=True)
class Progress:
    """How far a key is: the small part of its state, read every time and written with every change.

    Attributes:
        version: random; new whenever any state of the key changes.
        handled: the last step handled, or NOTHING.
        last: the last step that will be handled, where that turns out only while the key lives; NEVER before.
        waiting: bytes in the bag of records, and
        outdated: how many of them belong to steps that have been handled.
        log: bytes in the log, and
        compacted: how many there were after it was last rewritten.
        options: what stands for the options of the run.
    """

    version: bytes = b""
    handled: int = NOTHING
    last: int = NEVER
    waiting: int = 0
    outdated: int = 0
    log: int = 0
    compacted: int = 0
    options: bytes = b""

    def to_bytes(self) -> bytes:
        """Encode."""
        return pack("progress", PROGRESS, vars(self))

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Progress:
        """Decode; nothing stored yet is the initial progress."""
        if data is None:
            return cls()
        with readable():
            return cls(**unpack("progress", PROGRESS, data))  # type: ignore[arg-type]


class Cells(NamedTuple):
    """States and timer of one key, as the runner hands them over.

    Records wait in several bags, since some runners read a bag as one message, which must find room in their memory.
    """

    waiting: tuple[Any, ...]
    progress: Any
    log: Any
    due: Any


@dataclass(eq=False)
class Decoded:
    """The state of a key, decoded: its progress, what the log describes, and the waiting records by step (a heap)."""

    progress: Progress
    state: Any
    records: dict[int, list[bytes]] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)

    def add(self, step: int, record: bytes) -> None:
        """Add a waiting record."""
        if step not in self.records:
            self.records[step] = []
            heapq.heappush(self.steps, step)
        self.records[step].append(record)

    @property
    def first(self) -> int:
        """The first step that records wait for; NEVER if none do."""
        return self.steps[0] if self.steps else NEVER

    def take(self, step: int) -> list[bytes]:
        """Take out the records of a step, none of which are before; the step counts as handled then."""
        records = self.records.pop(heapq.heappop(self.steps)) if self.first == step else []
        outdated = self.progress.outdated + sum(map(len, records))
        self.progress = replace(self.progress, handled=step, outdated=outdated)
        return records

    def take_until(self, last: int) -> Iterator[tuple[int, list[bytes]]]:
        """Take out the records of each step up to `last`, in order of steps; all of these count as handled then."""
        while (step := self.first) <= last:
            yield step, self.take(step)
        self.progress = replace(self.progress, handled=max(last, self.progress.handled))

    def take_all(self) -> dict[int, list[bytes]]:
        """Take out the records of all steps, for none of them will be handled."""
        self.progress = replace(self.progress, outdated=self.progress.waiting)
        records, self.records, self.steps = self.records, {}, []
        return records


class KeyedStage(Protocol):
    """What `KeyedState` must know of the stage whose state it keeps."""

    def step_of(self, record: bytes) -> int:
        """Return the step that a record belongs to."""

    def decode(self, key: bytes, segments: list[bytes]) -> Any:
        """Return the state that a log describes; that before the first step, if the log is empty."""

    def encode(self, state: Any) -> list[bytes]:
        """Return a short log that describes a state."""


class KeyedState:
    """Keeps what a stage knows of each key: the records that wait until their step is due, and what it remembers.

    What is remembered is written as an append-only log: a step writes only what it changed. The log and the bag of
    records are rewritten when at least half of them is out of date, so that all writing is amortised over what changed.
    Decoded state is cached in the worker, under a random version that is written to state with every change: a bundle
    that was rolled back, or a key that moved, never meets a stale cache.

    Args:
        stage: whose state it is.
        options: what stands for the options of the run, with which state is written: that of other options is refused.
            Empty: not known.
    """

    def __init__(self, stage: KeyedStage, options: bytes = b"") -> None:
        self.stage = stage
        self.options = options
        self._cache: OrderedDict[bytes, Decoded] = OrderedDict()

    def wait(self, key: bytes, record: bytes, progress: Progress, cells: Cells) -> None:
        """Let a record wait; a state that is not cached need not be decoded for it."""
        decoded = self._cached(key, progress)
        progress = self._changed(_put(record, progress, cells))
        cells.progress.write(progress.to_bytes())
        if decoded is not None:
            decoded.add(self.stage.step_of(record), record)
            decoded.progress = progress
            self.cache(key, decoded)

    def open(self, key: bytes, cells: Cells) -> Decoded:
        """Return the decoded state of a key, out of the cache if it is current; an error leaves nothing cached.

        Raises:
            SnapshotError: some of it is not there, it cannot be decoded, or is of a run with other options: a key never
                begins anew for that.
        """
        progress = Progress.from_bytes(cells.progress.read())
        cached = self._cached(key, progress)
        if cached is not None:
            return cached
        segments = list(cells.log.read())
        records = list(chain.from_iterable(bag.read() for bag in _used(progress, cells)))
        for what, found, size in (("log", segments, progress.log), ("waiting records", records, progress.waiting)):
            if sum(map(len, found)) != size:
                raise SnapshotError(f"{what} must have {size:,} bytes, got {sum(map(len, found)):,}")
        with readable():
            decoded = Decoded(progress, self.stage.decode(key, segments))
            for record in records:
                if (step := self.stage.step_of(record)) > progress.handled:
                    decoded.add(step, record)
        return decoded

    def append(self, decoded: Decoded, segment: bytes, cells: Cells) -> None:
        """Add what has changed to the log."""
        cells.log.add(segment)
        decoded.progress = replace(decoded.progress, log=decoded.progress.log + len(segment))

    def rewrite(self, decoded: Decoded, cells: Cells) -> None:
        """Write the whole log anew."""
        cells.log.clear()
        segments = self.stage.encode(decoded.state)
        for segment in segments:
            cells.log.add(segment)
        size = sum(map(len, segments))
        decoded.progress = replace(decoded.progress, log=size, compacted=size)

    def restart(self, key: bytes, decoded: Decoded, cells: Cells) -> None:
        """Forget what a key remembers, and begin again with an empty log."""
        cells.log.clear()
        decoded.state = self.stage.decode(key, [])
        decoded.progress = replace(decoded.progress, log=0, compacted=0)

    def close(self, key: bytes, decoded: Decoded, cells: Cells) -> None:
        """Write how far a key is after a change, and cache its state; rewrite what is mostly out of date."""
        if decoded.progress.log > 2 * decoded.progress.compacted + LEAST_COMPACTION:
            self.rewrite(decoded, cells)
        progress = decoded.progress
        if progress.outdated and 2 * progress.outdated >= progress.waiting:
            for bag in _used(progress, cells):
                bag.clear()
            progress = replace(progress, waiting=0, outdated=0)
            for record in chain.from_iterable(decoded.records.values()):
                progress = _put(record, progress, cells)
        decoded.progress = self._changed(progress)
        cells.progress.write(decoded.progress.to_bytes())
        self.cache(key, decoded)

    def cache(self, key: bytes, decoded: Decoded) -> None:
        """Cache a decoded state, for so many keys."""
        self._cache[key] = decoded
        if len(self._cache) > CACHED_KEYS:
            self._cache.popitem(last=False)

    def _changed(self, progress: Progress) -> Progress:
        """Return the progress as it is written: for these options, under a version of its own."""
        return replace(progress, version=secrets.token_bytes(12), options=self.options)

    def _cached(self, key: bytes, progress: Progress) -> Decoded | None:
        """Take a decoded state out of the cache if it is the current one; refuse state of a run with other options."""
        if progress.options and self.options and progress.options != self.options:
            raise SnapshotError("options must be those of the run that wrote it")
        decoded = self._cache.pop(key, None)
        return decoded if decoded is not None and decoded.progress.version == progress.version else None


def declare_states(cls: type[beam.DoFn], state: str) -> None:
    """Declare states and timer of a stage, with what it does when an element comes and when the timer fires.

    Args:
        cls: with `keep(element, cells, stamp)` and `tick(key, time, cells)`.
        state: what the names begin with, and no other's in the project: a runner may fuse two stages, and then confuses
            timers of one name.
    """
    names = [f"{state}_waiting", *(f"{state}_waiting_{number}" for number in range(2, PARTS + 1))]
    parts = [BagStateSpec(name, BytesCoder()) for name in names]  # records of open steps, and some of handled ones
    progress = ReadModifyWriteStateSpec(f"{state}_progress", BytesCoder())  # encoded Progress
    log = BagStateSpec(f"{state}_log", BytesCoder())  # what the key remembers: segments, in order
    due = TimerSpec(f"{state}_due", TimeDomain.WATERMARK)

    def process(
        self: Any,
        element: Keyed,
        waiting: tuple[Any, ...],
        progress: Any = beam.DoFn.StateParam(progress),
        log: Any = beam.DoFn.StateParam(log),
        due: Any = beam.DoFn.TimerParam(due),
        stamp: Any = beam.DoFn.TimestampParam,
    ) -> Iterator[Any]:
        """Keep a record until its step is due."""
        check_state(progress)
        with says_what_to_do(type(self).__name__):
            yield from self.keep(element, Cells(waiting, progress, log, due), stamp)

    def on_due(
        self: Any,
        waiting: tuple[Any, ...],
        key: Any = beam.DoFn.KeyParam,
        time: Any = beam.DoFn.TimestampParam,
        progress: Any = beam.DoFn.StateParam(progress),
        log: Any = beam.DoFn.StateParam(log),
        due: Any = beam.DoFn.TimerParam(due),
    ) -> Iterator[Any]:
        """Handle the steps that are due; runners may deliver the timers of a key in any order."""
        with says_what_to_do(type(self).__name__):
            yield from self.tick(key, time, Cells(waiting, progress, log, due))

    methods = {"process": _with_parts(process, parts), "on_due": on_timer(due)(_with_parts(on_due, parts))}
    declared: tuple[StateSpec | TimerSpec, ...] = (*parts, progress, log, due)
    specs = {spec.name.upper(): spec for spec in declared}
    for name, value in {**specs, **methods}.items():
        setattr(cls, name, value)


@contextmanager
def readable() -> Iterator[None]:
    """Raise SnapshotError, which quotes nothing, where bytes are not those that this version decodes."""
    try:
        yield
    except SnapshotError:
        raise
    except NOT_OF_THIS_VERSION as error:
        raise SnapshotError(f"it cannot be decoded ({type(error).__name__})") from error


@contextmanager
def says_what_to_do(stage: str) -> Iterator[None]:
    """Say whose state cannot be used, and what to do; the bundle fails, and changes nothing."""
    try:
        yield
    except SnapshotError as error:
        raise SnapshotError(f"state of {stage} cannot be used: {error}. {WHAT_TO_DO}") from error


def _with_parts(method: Callable[..., Iterator[Any]], parts: list[BagStateSpec]) -> Callable[..., Iterator[Any]]:
    """Let Beam, which finds states by parameters, see one for each of the bags that a method gets as `waiting`."""
    signature = inspect.signature(method)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "waiting"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    bags = [inspect.Parameter(part.name, kind, default=beam.DoFn.StateParam(part)) for part in parts]
    seen = signature.replace(parameters=[*own, *bags])

    @wraps(method)
    def call(*given: Any, **named: Any) -> Iterator[Any]:
        arguments = seen.bind(*given, **named).arguments
        return method(waiting=tuple(arguments.pop(bag.name) for bag in bags), **arguments)

    call.__signature__ = seen  # type: ignore[attr-defined]
    return call


def _put(record: bytes, progress: Progress, cells: Cells) -> Progress:
    """Add a record to the bag whose turn it is: each gets some megabytes, then the next one."""
    cells.waiting[progress.waiting // PART_BYTES % len(cells.waiting)].add(record)
    return replace(progress, waiting=progress.waiting + len(record))


def _used(progress: Progress, cells: Cells) -> tuple[Any, ...]:
    """Return the bags that have had their turn since they were cleared."""
    return cells.waiting[: progress.waiting // PART_BYTES + 1]


RULE = (
    "runner must not be BundleBasedDirectRunner: its clocks run ahead of its other timers, so that events would not "
    "count. DirectRunner takes it for a TestStream and for processing-time timers: name PrismRunner"
)


class _FindTestStream(PipelineVisitor):
    """Tells whether a pipeline has a TestStream so far."""

    found = False

    @override
    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        self.found = self.found or isinstance(transform_node.transform, TestStream)


def check_runner(pipeline: beam.Pipeline) -> None:
    """Refuse the runner when a pipeline is built, as far as one can see by then.

    Raises:
        ValueError: with the rule, and what to do.
    """
    refused = isinstance(pipeline.runner, BundleBasedDirectRunner)
    if isinstance(pipeline.runner, SwitchingDirectRunner):
        visitor = _FindTestStream()
        pipeline.visit(visitor)
        refused = visitor.found
    if refused:
        raise ValueError(RULE)


def check_state(state: Any) -> None:
    """Refuse the runner when a stage runs: what is added to a pipeline later may have made Beam choose it.

    Args:
        state: a state of the stage, as the runner hands it over.
    """
    if isinstance(state, DirectRuntimeState):
        raise ValueError(RULE)
