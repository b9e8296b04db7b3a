"""`GroupByKey` closes a window: the runner drops what is late, by the watermark alone. Then rows of all shards meet."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from privstream.mechanisms.snapshots import pack, unpack
from privstream.transforms.batches import Keyed, KeyedBatch, StepKey
from privstream.transforms.counters import CLOSED, SENT
from privstream.transforms.timing.clock import WithClock, on_clock
from privstream.transforms.timing.step_fn import StepFn
from privstream.transforms.timing.steps import END_OF_TIME, MILLISECOND, Steps
from typing_extensions import override

NO_TIME = Timestamp(micros=END_OF_TIME // MILLISECOND * MILLISECOND)


class CloseWindows(beam.PTransform[Any, Any]):
    """Put together, under each step key, the batches that came before its step is decided.

    Whether a batch is in time must depend on the watermark alone, which is public. State cannot decide this: a key
    without events has the same state before and after, so that one person's event would decide whether those of others
    count. So each batch passes a GroupByKey in a window that ends at the decision time.

    A batch whose own timestamp is that late is dropped too. Where timestamps say when data arrived, a run that goes
    back to a checkpoint, with a watermark that has fallen behind, decides the same way again.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    @override
    def expand(self, batches: PCollection[Any]) -> Any:
        ends = self.steps.decision_time(0).micros % self.steps.grid
        windows = FixedWindows(Duration(micros=self.steps.grid), Timestamp(micros=ends))
        return (
            batches
            | "Stamp" >> beam.ParDo(StampBatches(self.steps)).with_output_types(KeyedBatch)
            | "UntilDecision"
            >> beam.WindowInto(windows, trigger=DefaultTrigger(), accumulation_mode=AccumulationMode.DISCARDING)
            | "DropLate" >> beam.GroupByKey()
            | "InOneWindow" >> beam.WindowInto(GlobalWindows())
        )


class StampBatches(beam.DoFn):
    """Send a batch into the window that ends at the decision of its step, and count its events."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.sent = Metrics.counter("privstream", SENT)

    @override
    def process(self, element: KeyedBatch, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        key, (events, _) = element
        self.sent.inc(events)
        end = self.steps.decision_time(StepKey.from_bytes(key).step)
        if not end <= timestamp < NO_TIME:
            yield TimestampedValue(element, end - Duration(micros=MILLISECOND))


class ClosedWindow(beam.DoFn):
    """Per step key: act on all that came in time, once. It keeps no state; what it is made with are its attributes."""

    closed = Metrics.counter("privstream", CLOSED)

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    @override
    def process(self, element: tuple[bytes, Iterable[tuple[int, bytes]]]) -> Iterator[Keyed]:
        key, found = element
        batches = sorted(found, key=lambda batch: batch[1])
        self.closed.inc(sum(events for events, _ in batches))
        yield from self.close(StepKey.from_bytes(key), [batch for _, batch in batches])

    @abstractmethod
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        """Act on the batches, at least one, in an order that depends on their bytes alone."""


class ToClock(ClosedWindow):
    """Hand all batches to the one clock that there is."""

    @override
    def close(self, key: StepKey, batches: list[bytes]) -> Iterator[Keyed]:
        for batch in batches:
            yield on_clock(key.step, batch)


Choose = Callable[[list[Any]], list[Any]]
Follow = Callable[[list[Any], list[Any]], list[Any]]


class AtWindowEnds(beam.PTransform[Any, Any]):
    """Choose, of all rows of a window, those that are published.

    Args:
        steps: those of the rows.
        row_type: of the rows, with `window_end`.
        timer_offset: that of this stage, after the one that the rows come from.
        choose: from all rows of a window, in any order, to those that are published.
        follow: from the chosen rows, and the rows published for the window before, to those that are published.
    """

    def __init__(
        self, steps: Steps, row_type: type, *, timer_offset: int, choose: Choose = list, follow: Follow | None = None
    ) -> None:
        super().__init__()
        self.steps = steps
        self.row_type = row_type
        self.timer_offset = timer_offset
        self.choose = choose
        self.follow = follow

    @override
    def expand(self, rows: PCollection[Any]) -> PCollection[Any]:
        coder = registry.get_coder(self.row_type)
        encoded = rows | "Encode" >> beam.Map(under_one_key, coder, self.steps).with_output_types(Keyed)
        clocked = encoded | "WithClock" >> WithClock(self.steps)
        publish = PublishAtEnds(
            steps=self.steps, timer_offset=self.timer_offset, coder=coder, choose=self.choose, follow=self.follow
        )
        return cast(PCollection[Any], clocked | beam.ParDo(publish).with_output_types(self.row_type))


def under_one_key(row: Any, coder: Coder, steps: Steps) -> Keyed:
    """Encode a row, with the step of its window."""
    return on_clock(int(steps.ending(row.window_end)), coder.encode(row))


class PublishAtEnds(StepFn, state="window_ends"):
    """Publish the rows of a window together. What is remembered are those of the last one, if others depend on them."""

    coder: Coder
    choose: Choose
    follow: Follow | None

    @override
    def initial(self, key: bytes) -> list[Any]:
        return []

    @override
    def snapshot(self, state: list[Any]) -> bytes:
        return pack("published rows", 1, {str(place): self.coder.encode(row) for place, row in enumerate(state)})

    @override
    def restore(self, data: bytes) -> list[Any]:
        found: dict[str, Any] = unpack("published rows", 1, data)
        return [self.coder.decode(row) for row in found.values()]

    @override
    def step(self, key: bytes, step: int, batches: list[bytes], state: list[Any]) -> tuple[list[Any], list[Any]]:
        rows = self.choose([self.coder.decode(row) for row in batches])
        if self.follow is None:
            return state, rows
        rows = self.follow(rows, state)
        return rows, rows
