"""A stateful stage that gathers all batches of one key until its step is decided, and then acts once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.utils.timestamp import Duration
from privstream.transforms.batches import StepKey, decode
from privstream.transforms.domain import Domain
from privstream.transforms.late import late_events
from privstream.transforms.steps import Steps

LATE_MEMORY = Duration(seconds=7 * 24 * 3600)


class CollectStep(beam.DoFn):
    """Gather the batches of a `StepKey` in the global window and hand them to `close` when the step is decided.

    A batch that comes after that is late: it is counted and described in the dead-letter output, never used. What
    remains in state after a decision is one byte per key, for a week of event time; the monitor itself refuses to
    decide a step twice, however late a batch is.

    A subclass declares its states and timers, under names of its own (a runner may fuse two stages, and then confuses
    timers of one name), and passes them on to `keep` and `close_step`.
    """

    def __init__(self, kind: type[Any], *, steps: Steps, stage: int, domain: Domain | None = None) -> None:
        self.kind = kind
        self.steps = steps
        self.stage = stage
        self.domain = domain
        self.late = Metrics.counter("privstream", "events_late")

    @abstractmethod
    def close(self, key: StepKey, batches: list[Any]) -> Iterable[Any]:
        """Return the outputs for a key, given all its batches; a function of nothing else."""

    def keep(self, element: tuple[bytes, bytes], batches: Any, closed: Any, due: Any) -> Iterator[Any]:
        """Keep a batch until its step is due."""
        key, data = element
        step = StepKey.from_bytes(key)
        if closed.read() is not None:
            batch = decode(self.kind, data)
            self.late.inc(len(batch.users))
            yield from late_events(self.steps, step, batch, self.domain)
            return
        batches.add(data)
        due.set(self.steps.decision_time(step.step, self.stage))

    def close_step(self, key: bytes, batches: Any, closed: Any, forget: Any) -> Iterator[Any]:
        """Act on the step, and free its state."""
        kept = [decode(self.kind, data) for data in batches.read()]
        if not kept:
            return
        step = StepKey.from_bytes(key)
        batches.clear()
        closed.write(b"1")
        forget.set(self.steps.decision_time(step.step, self.stage) + LATE_MEMORY)
        yield from self.close(step, kept)
