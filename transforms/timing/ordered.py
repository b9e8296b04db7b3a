"""A stateful stage that handles the steps of one key strictly in order, and remembers what it did to people."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.batches import HolderBatch, Keyed, StepKey, sealed_key, unseal
from privstream.transforms.timing.keyed_state import NEVER, Cells, Decoded, KeyedState, Progress, declare_states
from privstream.transforms.timing.steps import END_OF_TIME, STAGES, Steps


@dataclass(frozen=True, eq=False)
class Handled:
    """What handling one step gave: the state after it, what to append to the log, and the outputs."""

    state: Any
    segment: bytes | None
    outputs: Iterable[Any]


class OrderedSteps(beam.DoFn):
    """Handle the waiting batches of each step once, in order of steps, when the step's decision time has come.

    A step without batches is passed over, unless the state after the step before says that it follows. That must be
    public. A timer for the next step then holds the watermark until it is handled.

    Batches of a step that has been handled are late: counted, described in the dead-letter output, never used. A stage
    is a subclass with `state`, see `declare_states`.
    """

    batch_type: type[Any] = HolderBatch

    def __init_subclass__(cls, *, state: str = "") -> None:
        """Declare states and timer of a stage, if it is one."""
        super().__init_subclass__()
        if state:
            declare_states(cls, state)

    def __init__(self, *, steps: Steps, timer_offset: int) -> None:
        self.steps = steps
        self.timer_offset = timer_offset
        self.keys = KeyedState(self)
        self.late = Metrics.counter("privstream", "events_late")
        self.handled = Metrics.counter("privstream", "steps_handled")

    @abstractmethod
    def handle(self, key: bytes, step: int, batches: list[tuple[StepKey, Any]], state: Any) -> Handled:
        """Handle one step: a function of the arguments alone."""

    def follows(self, state: Any) -> bool:
        """Return whether the step after this state is handled even if no batch comes for it."""
        return False

    @abstractmethod
    def describe_late(self, key: StepKey, batch: Any) -> Iterator[Any]:
        """Describe a late batch in the dead-letter output."""

    @abstractmethod
    def decode(self, key: bytes, segments: list[bytes]) -> Any:
        """Return the state that the log describes."""

    @abstractmethod
    def encode(self, state: Any) -> list[bytes]:
        """Return a short log that describes the state."""

    def unpack(self, record: bytes) -> Any:
        """Return the batch in a sealed record."""
        return unseal(self.batch_type, record)

    def size_of(self, batch: Any) -> int:
        """Return how many events a late batch counts as."""
        return len(batch.users)

    def step_of(self, record: bytes) -> int:
        """Return the step of a sealed batch."""
        return sealed_key(record).step

    def keep(self, element: Keyed, cells: Cells, stamp: Timestamp | None = None) -> Iterator[Any]:
        """Keep a batch until its step is handled."""
        key, record = element
        step, progress = self.step_of(record), Progress.from_bytes(cells.progress.read())
        if step <= progress.handled:
            batch = self.unpack(record)
            self.late.inc(self.size_of(batch))
            yield from self.describe_late(sealed_key(record), batch)
            return
        self.keys.wait(key, record, progress, cells)
        self.set_due(cells.due, step)

    def tick(self, key: bytes, time: Timestamp, cells: Cells) -> Iterator[Any]:
        """Handle all steps whose time has come."""
        decoded = self.keys.open(key, cells)
        handled, before = 0, decoded.progress.handled
        for step, batches in self.due(decoded, self.steps.latest(time.micros, self.timer_offset)):
            if self.steps.starts_afresh(before, step):
                self.keys.restart(key, decoded, cells)
            before = step
            result = self.handle(key, step, batches, decoded.state)
            at = self.steps.decision_time(step, self.timer_offset)  # the timer that fires may be that of a later step
            yield from (TimestampedValue(output, at) for output in result.outputs)
            decoded.state = result.state
            if result.segment is not None:
                self.keys.append(decoded, result.segment, cells)
            handled += 1
        if handled:
            self.handled.inc(handled)
            if (following := self._following(decoded)) != NEVER:
                self.set_due(cells.due, following)
            self.keys.close(key, decoded, cells)
        else:
            self.keys.cache(key, decoded)

    def set_due(self, timer: Any, step: int) -> None:
        """Set the timer at which a step is handled, which holds the watermark until then."""
        due = self.steps.decision_time(step, self.timer_offset)
        timer.set(due, dynamic_timer_tag=str(step))  # some runners keep all

    def due(self, decoded: Decoded, last: int) -> Iterator[tuple[int, list[tuple[StepKey, Any]]]]:
        """Take out the batches of the steps up to `last` that are to be handled, each after the one before has been."""
        while (step := min(decoded.first, self._following(decoded))) <= last:
            yield step, [(sealed_key(record), self.unpack(record)) for record in decoded.take(step)]

    def _following(self, decoded: Decoded) -> int:
        """Return the step that is handled next even if no batch comes for it; NEVER if there is none."""
        step = decoded.progress.handled + 1
        end = self.steps.latest(END_OF_TIME, STAGES) + 1 if self.steps.end is None else self.steps.end
        if step >= end or self.steps.starts_afresh(step - 1, step):
            return NEVER
        return step if self.follows(decoded.state) else NEVER
