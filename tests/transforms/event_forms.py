"""Events (user, item, microseconds) in the forms that pipelines take: rows, Arrow batches, streams in time."""

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
import pyarrow as pa
import runner_harness
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.transforms.counters import summed
from privstream.transforms.reading.frames import raw_columns, read_rows

SECOND = 1_000_000
KINDS = {"user": pa.string(), "item": pa.string(), "time": pa.timestamp("us", "UTC")}
Events = list[tuple[str, str, int]]


def as_rows(events: Events) -> list[beam.Row]:
    return [beam.Row(user=u, item=i, time=Timestamp(micros=t)) for u, i, t in events]


def as_arrow(events: Events, size: int = 80) -> list[pa.RecordBatch]:
    """Return batches of random lengths up to `size`."""
    chance, batches = random.Random(4), []
    while events:
        count = chance.randint(1, size)
        columns, events = zip(*events[:count], strict=True), events[count:]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, KINDS.values(), strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, names=list(KINDS)))
    return batches


def checked(made: beam.PTransform, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return batches as a transform takes them in behind its boundary."""
    fields = made.event_fields
    return [read_rows(raw_columns(batch, fields), batch.num_rows, fields).clean for batch in batches]


def stamped(event: tuple[str, str, int]) -> TimestampedValue:
    """Return an event as a pair at its own time."""
    user, item, time = event
    return TimestampedValue((user, item), Timestamp(micros=time))


def disordered(events: Events, late: Events, start: int, chance: random.Random) -> TestStream:
    """Return a stream out of order in which only `late` ones are late; windows of 10 s stay open for another 5.

    Whatever comes after some twenty windows comes at once, and is decided when the watermark jumps to the end.
    """
    waiting, source = list(events), TestStream()
    for now in range(start, start + 210, 14):
        go = [e[2] // SECOND // 10 * 10 + 10 <= now or chance.random() < 0.1 for e in waiting]
        ready = list(itertools.compress(waiting, go))
        waiting = list(itertools.compress(waiting, [not g for g in go]))
        ready += late if now == start + 98 else []
        chance.shuffle(ready)
        if ready:
            source = source.add_elements([stamped(e) for e in ready])
        source = source.advance_watermark_to(now + 4)
        if now > start + 98 and not waiting:
            break
    return source.add_elements([stamped(e) for e in waiting]).advance_watermark_to_infinity()


def crowd_at(moment: float, crowd: Events, others: Events) -> TestStream:
    """Return a stream of which the crowd comes when the watermark is at `moment`, and the others before."""
    source = TestStream()
    if others:
        source = source.add_elements([stamped(event) for event in others])
    source = source.advance_watermark_to(moment).add_elements([stamped(event) for event in crowd])
    return source.advance_watermark_to_infinity()


def of_elements(elements: Iterable[Any], made: beam.PTransform) -> Callable[[beam.Pipeline], runner_harness.Outputs]:
    """Return a pipeline with a transform on elements that are spread over workers."""

    def build(pipeline):
        events = pipeline | "Elements" >> beam.Create(elements) | "Spread" >> beam.Reshuffle()
        return events | made.with_dead_letters()

    return build


def run_bounded(runner: str, elements: list, made: beam.PTransform, *extra: str) -> runner_harness.Results:
    """Run a transform on elements that are spread over workers."""
    return runner_harness.run(runner, of_elements(elements, made), *extra)


def late_of(results) -> int:
    """How many events of a run were sent to windows that were closed already."""
    counted = summed((name.partition(":")[2], number) for name, number in results.counters.items())
    return counted.get("events_late", 0)
