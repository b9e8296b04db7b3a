"""Which batches came before their step was decided, by the watermark alone; and stages that keep them until then."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from privstream.transforms.batches import DIGEST_BYTES, Keyed, KeyedBatch, StepKey
from privstream.transforms.timing.steps import END_OF_TIME, MILLISECOND, Steps
from typing_extensions import override

NO_TIME = Timestamp(micros=END_OF_TIME // MILLISECOND * MILLISECOND)


class WithOnTimeMarkers(beam.PTransform[Any, Any]):
    """Add to the encoded batches of each step key the digests of those that were in time.

    A step is decided when the watermark reaches its decision time. Whether a batch came before that must depend on the
    watermark alone, which is public. State cannot decide this: a key without events has the same state before and
    after, so that one person's event would decide whether those of others count. So the digest of each batch passes a
    GroupByKey in a window that ends at the decision time, where the runner drops what is late.

    A batch whose own timestamp is that late gets no marker either. Where timestamps say when data arrived, a run that
    goes back to a checkpoint, with a watermark that has fallen behind, decides the same way again.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    @override
    def expand(self, batches: PCollection[Any]) -> PCollection[Any]:
        ends = self.steps.decision_time(0).micros % self.steps.grid
        windows = FixedWindows(Duration(micros=self.steps.grid), Timestamp(micros=ends))
        markers = (
            batches
            | "SendMarkers" >> beam.ParDo(SendMarkers(self.steps)).with_output_types(Keyed)
            | "UntilDecision"
            >> beam.WindowInto(windows, trigger=DefaultTrigger(), accumulation_mode=AccumulationMode.DISCARDING)
            | "DropLate" >> beam.GroupByKey()
            | "JoinMarkers" >> beam.Map(join_markers).with_output_types(KeyedBatch)
            | "InOneWindow" >> beam.WindowInto(GlobalWindows())
        )
        return cast(PCollection[Any], (batches, markers) | "WithBatches" >> beam.Flatten())


def apart_in_time(batches: PCollection[Any], steps: Steps) -> PCollection[Any]:
    """Add on-time markers to batches, for a stage that cannot be fused with others that read the same input."""
    marked = batches | "WithOnTimeMarkers" >> WithOnTimeMarkers(steps)
    return cast(PCollection[Any], marked | "ApartFromOthers" >> beam.Reshuffle())


class SendMarkers(beam.DoFn):
    """Send the digest of a batch into the window that ends at the decision of its step."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    @override
    def process(self, element: KeyedBatch, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        key, (digest, _) = element
        end = self.steps.decision_time(StepKey.from_bytes(key).step)
        if end <= timestamp < NO_TIME:
            return
        yield TimestampedValue((key, digest), end - Duration(micros=MILLISECOND))


def join_markers(element: tuple[bytes, Iterable[bytes]]) -> KeyedBatch:
    """Put the digests of one step key together."""
    key, digests = element
    return key, (b"".join(digests), b"")


def count_markers(joined: Iterable[bytes]) -> Counter[bytes]:
    """Return how often each digest stands in joined markers."""
    return Counter(part[i : i + DIGEST_BYTES] for part in joined for i in range(0, len(part), DIGEST_BYTES))


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

    @override
    def record_of(self, value: tuple[bytes, bytes]) -> bytes:
        digest, data = value
        return (BATCH if data else MARKER) + digest + data

    @override
    def act(self, key: StepKey, records: list[bytes]) -> Iterator[Any]:
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
