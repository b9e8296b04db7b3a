"""Public clocks: every step is handled once, whatever the data, and rows get its last moment."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, cast

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.userstate import RuntimeTimer, Timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.version import __version__
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed
from privstream.transforms.timing.keyed_state import NOTHING, Cells, Decoded, KeyedState, Progress, declare_states
from privstream.transforms.timing.on_time import NO_TIME
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps
from typing_extensions import override


def set_timer(timer: Any, fire: Timestamp, *, hold: Timestamp, tag: str) -> None:
    """Set an event-time timer for `fire` that holds the output watermark at `hold` until it has fired.

    Beam's protocol and its portable runners know such timers; Beam's `set` for Python always holds at the time at which
    the timer fires. So the timer is encoded here, the way `set` of `bundle_processor.OutputTimer` does it.
    BundleBasedDirectRunner, the one runner with other timers, holds the watermark for none.

    Raises:
        RuntimeError: Beam writes timers in another way than the release that privstream is pinned to.
    """
    if isinstance(timer, RuntimeTimer):
        timer.set(fire, dynamic_timer_tag=tag)
        return
    try:
        record = Timer(
            user_key=timer._key,
            dynamic_timer_tag=tag,
            windows=(timer._window,),
            clear_bit=False,
            fire_timestamp=fire,
            hold_timestamp=hold,
            paneinfo=timer._paneinfo,
        )
        timer._timer_coder_impl.encode_to_stream(record, timer._output_stream, True)
        timer._output_stream.maybe_flush()
    except (AttributeError, TypeError) as error:
        raise RuntimeError(f"apache-beam must write timers as release 2.77 does, got {__version__}: {error}") from error


MOST_WINDOWS = 1 << 20
"""Of a run whose input ends: a year of minutes has half as many."""

SEED = b""
STEP = struct.Struct(">q")

ONE_KEY = ""
"""The name of a clock that is alone."""


class WithClock(beam.PTransform[Any, Any]):
    """Add to keyed records (see `stepped`) what starts each clock; goes before `ClockedSteps`.

    Args:
        steps: with a first step; they may do without an end if the input is unbounded.
        names: of the clocks, which are public; keys are these names, encoded.
        apart: whether to reshuffle, so that the stage cannot be fused with others that read the same input. It must not
            be done to what a stage with timers emits: not every runner groups what comes after the end of time.

    Raises:
        ValueError: `start` is missing, or `end` is although the input is bounded: its watermark jumps to the end of
            time, and every window up to then would be published; or there are too many windows until then.
    """

    def __init__(self, steps: Steps, names: tuple[str, ...] = (ONE_KEY,), *, apart: bool = True) -> None:
        super().__init__()
        if steps.first is None:
            raise ValueError("start must be given: every window from start on is published")
        self.steps = steps
        self.names = names
        self.apart = apart

    @override
    def expand(self, records: PCollection[Any]) -> PCollection[Any]:
        if records.is_bounded and self.steps.end is None:
            raise ValueError("end must be given when the input is bounded: every window until end is published")
        windows = (self.steps.end or 0) - (self.steps.first or 0)
        if records.is_bounded and windows > MOST_WINDOWS:
            raise ValueError(
                f"end must be at most {MOST_WINDOWS:,} windows after start, got {windows:,} windows of "
                f"{self.steps.length}, all of which are handled, with events or without: check start, end and "
                "window, or take longer windows"
            )
        once = records.pipeline | "Once" >> beam.Impulse()
        seeds = once | "StartClocks" >> beam.ParDo(StartClocks(self.names)).with_output_types(Keyed)
        together = (records, seeds) | "WithSeeds" >> beam.Flatten()
        return cast(PCollection[Any], together | "ApartFromOthers" >> beam.Reshuffle() if self.apart else together)


class StartClocks(beam.DoFn):
    """One seed for each clock."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    @override
    def process(self, _: bytes) -> Iterator[Keyed]:
        for name in self.names:
            yield name.encode(), SEED


def stepped(step: int, batch: bytes) -> bytes:
    """Return what `ClockedSteps` takes under a key: a batch of one step."""
    return STEP.pack(step) + batch


def on_clock(step: int, batch: bytes) -> Keyed:
    """Return what `ClockedSteps` takes on a clock that is alone: a batch of one step."""
    return ONE_KEY.encode(), stepped(step, batch)


Outputs = Iterable[tuple[int, Any]]
Batches = dict[int, list[bytes]]

CHUNK = 4096  # steps handled before their outputs are passed on
BLOCKS = (1, 16, 256, 4096, 65_536)
UNBOUNDED_BLOCKS = BLOCKS[:3]
OVER = "over"


class ClockedSteps(beam.DoFn, ABC):
    """Handle every step of a key once and in order, empty ones too, when its decision time has come.

    A seed (see `WithClock`) starts the clock: event data neither start nor move it. So when a step is handled, and what
    is late, depends on the watermark alone. Late batches are set aside, never used.

    The clock is an event-time timer that goes from step to step. If the watermark jumps, further timers at the ends of
    blocks of steps let one call handle many of them; runners may fire them in any order. Outputs have the last moment
    of their window as timestamp, at which the timer of the next step holds the watermark until the step is handled.

    When the input of an unbounded clock ends, it stops at the end of a block: at most two blocks of `UNBOUNDED_BLOCKS`
    more are handled, as many as the position of the clock says. Batches of steps after that are set aside: which steps
    have events must not show in how many are handled.

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

    def __init__(self, *, steps: Steps, timer_offset: int) -> None:
        if steps.first is None:
            raise ValueError("start must be given: every window from start on is published")
        self.steps = steps
        self.timer_offset = timer_offset
        self.keys = KeyedState(self)
        self.late = Metrics.counter("privstream", "events_late")
        self.handled = Metrics.counter("privstream", "steps_handled")
        self._before = steps.first - 1
        self._last = steps.latest(END_OF_TIME, STAGES) if steps.end is None else steps.end - 1
        self._blocks: tuple[int, ...] = UNBOUNDED_BLOCKS if steps.end is None else BLOCKS

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
        if came_late or step <= progress.handled or progress.handled >= progress.last:
            yield from self.set_aside(key, step, record[STEP.size :])
        else:
            self.keys.wait(key, record, progress, cells)

    def tick(self, key: bytes, time: Timestamp, cells: Cells) -> Iterator[Any]:
        """Handle all steps whose time has come; several timers, in any order, may have called for them."""
        progress = Progress.from_bytes(cells.progress.read())
        before = progress.handled
        if before >= min(self._last, progress.last):
            return  # it is over
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
        batches = self._sorted(dict(decoded.take_until(due)))
        state, renewed, last_moment = decoded.state, False, cache(self.steps.last_moment)
        for first, until in self._chunks(before + 1, due):
            if self.steps.starts_afresh(first - 1, first):
                renewed, state = True, self.afresh(key, state)
            state, outputs = self.walk(key, first, until, batches, state)
            for step, output in outputs:
                yield TimestampedValue(output, last_moment(step))
        decoded.progress, decoded.state = replace(decoded.progress, handled=due), state
        self.count(due - before)
        if due < last:
            self._write(decoded, [] if renewed else self.changes(before + 1, due, batches, state), cells)
            decoded.state = self.logged(state)
            self._set_timers(cells.due, due, before)
        else:
            decoded.state = None
            cells.log.clear()
            decoded.progress = replace(decoded.progress, log=0, compacted=0)
            if decoded.records:
                yield from self._leave(key, decoded)
        self.keys.close(key, decoded, cells)

    def _leave(self, key: bytes, decoded: Decoded) -> Iterator[Any]:
        """Set aside the batches of steps after the last one."""
        for step, batches in sorted(self._sorted(decoded.take_all()).items()):
            for batch in batches:
                yield from self.set_aside(key, step, batch)

    def _sorted(self, records: dict[int, list[bytes]]) -> Batches:
        """Return the batches of each step."""
        return {step: sorted(record[STEP.size :] for record in some) for step, some in records.items()}

    def _chunks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Return the steps to handle, in runs that are short, and in which nothing starts afresh."""
        while first <= last:
            until = min(first + self.chunk - 1, last, self.steps.last_of_period(first))
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
        """Say at which step an unbounded clock stops, now that its input has ended."""
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


class MechanismSteps(ClockedSteps):
    """A mechanism runs through its steps, and what it gives is published.

    A subclass names the counter of what it publishes.
    """

    counter: ClassVar[str]

    def __init__(self, *, steps: Steps, timer_offset: int, mechanism: Any, noise: NoiseSource) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.mechanism = mechanism
        self.noise = noise
        self.published = Metrics.counter("privstream", self.counter)

    def noise_of(self, step: int) -> NoiseSource:
        """Return the noise of a step: another one after everything has started afresh."""
        return self.steps.renewed(self.noise, step)


class SingleSteps(ClockedSteps):
    """Handle steps one by one: for stages that gain nothing by a walk over many."""

    @abstractmethod
    def advance(self, key: bytes, step: int, batches: list[bytes], state: Any) -> tuple[Any, Iterable[Any]]:
        """Handle one step: return the state after it, and its outputs."""

    @override
    def walk(self, key: bytes, first: int, last: int, batches: Batches, state: Any) -> tuple[Any, Outputs]:
        outputs: list[tuple[int, Any]] = []
        for step in range(first, last + 1):
            state, found = self.advance(key, step, batches.get(step, []), state)
            outputs += ((step, output) for output in found)
        return state, outputs


Choose = Callable[[list[Any]], list[Any]]
Follow = Callable[[list[Any], list[Any]], list[Any]]


class AtWindowEnds(beam.PTransform[Any, Any]):
    """Give rows the last moment of their window as timestamp, and hold the watermark there until they have come.

    A stage that knows of a step only by its data cannot hold the watermark for it: when the first batch comes, the
    watermark may have passed the window's end. So rows pass this stage, whose clock holds the watermark for every
    window, whether it has rows or not, and publishes them a millisecond later.

    Args:
        steps: those of the rows; without a first or a last one, all that there are.
        row_type: of the rows, with `window_end`.
        timer_offset: that of this stage, after the one that the rows come from.
        choose: from all rows of a window, in any order, to those that are published.
        follow: from the chosen rows, and the rows published for the window before, to those that are published.
    """

    def __init__(
        self, steps: Steps, row_type: type, *, timer_offset: int, choose: Choose = list, follow: Follow | None = None
    ) -> None:
        super().__init__()
        self.choose = choose
        self.follow = follow
        end = steps.latest(END_OF_TIME, STAGES) + 1 if steps.end is None else steps.end
        self.steps = replace(steps, first=steps.first or 0, end=end, renewal=None)
        self.starts_afresh = steps.starts_afresh
        self.row_type = row_type
        self.timer_offset = timer_offset

    @override
    def expand(self, rows: PCollection[Any]) -> PCollection[Any]:
        coder = registry.get_coder(self.row_type)
        encoded = rows | "Encode" >> beam.Map(under_one_key, coder, self.steps).with_output_types(Keyed)
        once = rows.pipeline | "Once" >> beam.Impulse()
        start = once | "StartClock" >> beam.ParDo(StartClocks((ONE_KEY,))).with_output_types(Keyed)
        publish = PublishAtEnds(self.steps, coder, self.timer_offset, self.choose, self.follow, self.starts_afresh)
        together = (encoded, start) | "WithStart" >> beam.Flatten()
        return cast(PCollection[Any], together | beam.ParDo(publish).with_output_types(self.row_type))


def under_one_key(row: Any, coder: Coder, steps: Steps) -> Keyed:
    """Encode a row, with the step of its window."""
    step = steps.ending(row.window_end)
    return ONE_KEY.encode(), stepped(int(step), coder.encode(row))


class PublishAtEnds(ClockedSteps, state="window_ends"):
    """Keep rows until their step is over.

    A timer does not know where the watermark is, and there may be billions of steps before it: so the blocks of the
    clock have 2, 4, 8, .. steps. Each round of their timers finds one more binary digit of the present step.

    What is remembered are the rows of the last step, if those of the next one depend on them. No clock starts afresh
    here: there may be billions of steps before the first row.

    Rows could be passed on as they come. But FnApiRunner gives side inputs again whatever a stage emitted before its
    last bundle, and the last is that of the timers.
    """

    chunk = 1 << 62

    def __init__(
        self,
        steps: Steps,
        coder: Coder,
        timer_offset: int,
        choose: Choose,
        follow: Follow | None,
        starts_afresh: Callable[[int, int], bool],
    ) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.starts_afresh = starts_afresh
        self.coder = coder
        self.choose = choose
        self.follow = follow
        self._blocks = tuple(1 << level for level in range(self._last.bit_length() + 1))

    @override
    def initial(self, key: bytes) -> list[Any]:
        return []

    @override
    def snapshot(self, state: list[Any]) -> bytes:
        rows = {str(place): self.coder.encode(row) for place, row in enumerate(state)}
        return pack("published rows", 1, rows) if rows else b""

    @override
    def restore(self, data: bytes) -> list[Any]:
        found: dict[str, Any] = unpack("published rows", 1, data) if data else {}
        return [self.coder.decode(row) for row in found.values()]

    @override
    def count(self, steps: int) -> None:
        """Count nothing: nothing is decided here, and there may be billions of steps before the first row."""

    @override
    def set_aside(self, key: bytes, step: int, batch: bytes) -> Iterator[Any]:
        yield TimestampedValue(self.coder.decode(batch), self.steps.last_moment(step))

    @override
    def walk(
        self, key: bytes, first: int, last: int, batches: dict[int, list[bytes]], state: list[Any]
    ) -> tuple[list[Any], Outputs]:
        published = {first - 1: state}
        for step, encoded in batches.items():
            rows = self.choose([self.coder.decode(row) for row in encoded])
            before = [] if self.starts_afresh(step - 1, step) else published.get(step - 1, [])
            published[step] = rows if self.follow is None else self.follow(rows, before)
        remembered = [] if self.follow is None else published.get(last, [])
        return remembered, [(step, row) for step in batches for row in published[step]]
