"""Stateful stages whose keys are those of one step: batches are kept until it is due, and then all state is freed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from privstream.transforms.batches import Keyed, StepKey
from privstream.transforms.timing.on_time_markers import DIGEST_BYTES, count_markers
from privstream.transforms.timing.steps import Steps

BATCH, MARKER = b"b", b"m"


class StepBatches(beam.DoFn):
    """Keep the batches of a step key until its step is due, then act on them once. All state of the key is freed then.

    A stage is a subclass with `state`, which the names of its bag and its timer begin with, and no other's in the
    project: a runner may fuse two stages, and then confuses timers of one name.
    """

    def __init_subclass__(cls, *, state: str = "") -> None:
        """Declare bag and timer of a stage."""
        super().__init_subclass__()
        if not state:
            return
        batches = BagStateSpec(f"{state}_batches", BytesCoder())  # those of an open step
        due = TimerSpec(f"{state}_due", TimeDomain.WATERMARK)

        def process(
            self: StepBatches,
            element: tuple[bytes, Any],
            batches: Any = beam.DoFn.StateParam(batches),
            due: Any = beam.DoFn.TimerParam(due),
        ) -> None:
            """Keep a batch until the step is due."""
            key, value = element
            batches.add(self.record_of(value))
            due.set(self.steps.decision_time(StepKey.from_bytes(key).step, self.timer_offset))

        @on_timer(due)
        def on_due(
            self: StepBatches, key: Any = beam.DoFn.KeyParam, batches: Any = beam.DoFn.StateParam(batches)
        ) -> Iterator[Any]:
            """Act on the batches, and free the state."""
            records = list(batches.read())
            batches.clear()
            if records:
                yield from self.act(StepKey.from_bytes(key), records)

        for name, value in {"BATCHES": batches, "DUE": due, "process": process, "on_due": on_due}.items():
            setattr(cls, name, value)

    def __init__(self, *, steps: Steps, timer_offset: int) -> None:
        self.steps = steps
        self.timer_offset = timer_offset

    def record_of(self, value: Any) -> bytes:
        """Return what is kept of an element under its key."""
        data: bytes = value
        return data

    @abstractmethod
    def act(self, key: StepKey, records: list[bytes]) -> Iterator[Any]:
        """Act on what was kept, at least one record, in any order."""


class OnTimeBatches(StepBatches):
    """Batches with on-time markers (see `WithOnTimeMarkers`): those that were in time are acted on.

    A batch without a marker is late: counted, described in the dead-letter output, never used. Of batches with equal
    bytes so many count as there are markers: a late copy of a batch that was in time would otherwise count for as long
    as no byte of that differs, and one event would decide about all events of the copy.
    """

    def __init__(self, *, steps: Steps, timer_offset: int) -> None:
        super().__init__(steps=steps, timer_offset=timer_offset)
        self.late = Metrics.counter("privstream", "events_late")

    @abstractmethod
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Act on the batches that were in time, at least one, in an order that depends on their bytes alone."""

    @abstractmethod
    def set_aside(self, key: StepKey, batch: bytes) -> Iterator[Any]:
        """Count and describe a late batch."""

    def record_of(self, value: tuple[bytes, bytes]) -> bytes:
        """Mark a batch, or markers."""
        digest, data = value
        return (BATCH if data else MARKER) + digest + data

    def act(self, key: StepKey, records: list[bytes]) -> Iterator[Any]:
        """Set late batches aside, and act on the others."""
        markers = count_markers(record[1:] for record in records if record[:1] == MARKER)
        used = []
        for record in records:
            if record[:1] == BATCH:
                digest, batch = record[1 : 1 + DIGEST_BYTES], record[1 + DIGEST_BYTES :]
                if markers[digest]:
                    markers[digest] -= 1
                    used.append(batch)
                else:
                    yield from self.set_aside(key, batch)
        if used:
            yield from self.close(key, sorted(used))
