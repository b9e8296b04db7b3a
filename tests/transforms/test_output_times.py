"""Rows come at the last moment of their window, in time for windows and a GroupByKey that a user puts after them."""

import copy
import dataclasses
import itertools
import random

import apache_beam as beam
import cardinality_workloads
import histogram_workloads
from apache_beam.testing import test_stream
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from event_forms import stamped
from every_runner import Streamed, one_job
from privstream.transforms.timing.steps import MILLISECOND

SECOND = 1_000_000
SEED = 5
LATENESS = 25 * SECOND
BEATS = 24  # moments at which events come, each two thirds of a window

CASES = [
    (0, histogram_workloads, "plain", {}),
    (LATENESS, histogram_workloads, "plain", {"end": None}),
    (LATENESS, cardinality_workloads, "doors with time-out, limited", {}),
]


def with_lateness(made: beam.PTransform, lateness: int) -> beam.PTransform:
    other = copy.copy(made)
    other.steps = dataclasses.replace(made.steps, allowed_lateness=lateness)
    return other


def paced(events: list[TimestampedValue], pace: int, chance: random.Random) -> test_stream.TestStream:
    """Return the events as they come, one in ten of them late; the last windows are decided by a jump to the end."""
    beats = [((e.timestamp.micros + (chance.random() < 0.1) * LATENESS) // pace, e) for e in events]
    source, last = test_stream.TestStream(), min(beat for beat, _ in beats) + BEATS
    beats = [(min(beat, last), event) for beat, event in beats]
    for beat, ready in itertools.groupby(sorted(beats, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        source = source.advance_watermark_to(Timestamp(micros=beat * pace)).add_elements([event for _, event in ready])
    return source.advance_watermark_to_infinity()


class Within(beam.DoFn):
    """Says of each row in which window it was gathered."""

    def process(self, element, window=beam.DoFn.WindowParam):
        for row in element[1]:
            yield row, window.start.micros, window.end.micros


class ByWindow(beam.PTransform):
    """What a user does: windows of the same length, grouped, nothing late allowed."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = Duration(micros=size)

    def expand(self, rows):
        keyed = rows | beam.Map(lambda row: (b"", row)) | beam.WindowInto(FixedWindows(self.size))
        return keyed | beam.GroupByKey() | beam.ParDo(Within())


def check(rows: list, found: list, size: int) -> None:
    """Nothing is lost, and all is where it belongs."""
    assert sorted(row for row, *_ in found) == sorted(rows)
    for row, start, end in found:
        assert start < row.window_end.micros <= end
        assert end - start == size


@one_job("window ends", range(len(CASES)), runners=["prism"])
def test_rows_are_in_time_for_the_windows_of_a_user(case):
    lateness, kind, configuration, changes = CASES[case]
    made = kind.transform(configuration, **changes)
    events = [stamped(event) for event in kind.random_events(configuration, random.Random(SEED))]
    source = paced(events, made.steps.size * 2 // 3 // MILLISECOND * MILLISECOND, random.Random(SEED))

    def build(everything):
        rows = everything | with_lateness(made, lateness)
        return {"rows": rows, "grouped": rows | ByWindow(made.steps.size)}

    results = yield Streamed(source, build)
    rows = results.outputs["rows"]
    assert rows
    assert all(stamp == row.window_end.micros - 1 for row, stamp in rows)
    check([row for row, _ in rows], results.elements("grouped"), made.steps.size)
