"""Parts of Parquet files by the least times that their statistics state: how these are read, and in which order."""

from datetime import UTC, datetime

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from lying_statistics import lie
from privstream.pipelines.runners.local_runner import moves_watermarks
from privstream.pipelines.sources import readers
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import match_files, parts_of
from privstream.pipelines.sources.parquet_events import row_groups
from privstream.pipelines.sources.readers import OrderedParts, ReadEvents, ReadInOrder, unpack

HOUR = 3_600_000_000
START = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 10**6
MICROS = pa.timestamp("us", "UTC")


def write(path, times, kind=MICROS, group=2, **options):
    rows = len(times)
    table = pa.table({"user": ["u"] * rows, "item": ["i"] * rows, "time": pa.array(times, kind)})
    pq.write_table(table, path, row_group_size=group, **options)
    return str(path)


def least(path, unit=None, **fields):
    return [least for _, least in row_groups(path, FieldMapping(**({"time_zone": "UTC", "time_unit": unit} | fields)))]


def cut(pattern, **fields):
    fields = FieldMapping(**({"time_zone": "UTC"} | fields))
    return [part for file in match_files(str(pattern)) for part in parts_of(file, fields)]


@pytest.mark.parametrize(
    ("kind", "unit", "per_second"),
    [
        (MICROS, None, 10**6),
        (pa.timestamp("ns"), None, 10**9),
        (pa.timestamp("ms"), None, 10**3),
        (pa.timestamp("s"), None, 1),
        (pa.int64(), "ms", 10**3),
        (pa.int32(), "s", 1),
    ],
)
def test_least_times_are_read_as_events_are(tmp_path, kind, unit, per_second, read_all):
    seconds = [START // 10**6 + second for second in (9, 5, 7, 8, 3)]
    path = write(tmp_path / "e.parquet", [second * per_second for second in seconds], kind)
    expected = [(START // 10**6 + second) * 10**6 for second in (5, 7, 3)]
    assert least(path, unit) == expected
    found = [row["time"] for row in read_all(path, time_unit=unit).rows]
    assert [min(found[at : at + 2]) for at in (0, 2, 4)] == expected


@pytest.mark.parametrize(
    ("times", "kind", "unit", "options"),
    [
        ([START, START + 1], MICROS, None, {"write_statistics": False}),
        ([None, None], MICROS, None, {}),
        (["2024-01-01T00:00:00Z", "2024-01-01T00:00:01Z"], pa.string(), None, {}),
        ([1, 2], pa.uint64(), "s", {}),
        ([START * 1000], pa.timestamp("ns"), None, {"use_deprecated_int96_timestamps": True}),
        ([7.0, 8.0], pa.float64(), "s", {}),
    ],
    ids=["no statistics", "nulls alone", "text", "unsigned", "int96", "floats"],
)
def test_what_states_no_least_time_has_none(tmp_path, times, kind, unit, options):
    assert least(write(tmp_path / "e.parquet", times, kind, **options), unit) == [None]


@pytest.mark.parametrize(
    ("times", "kind", "unit"),
    [
        ([-5, START], MICROS, None),
        ([2**62, 2**63 - 1], pa.int64(), "s"),
    ],
)
def test_a_least_time_that_is_none_counts_as_the_beginning(tmp_path, times, kind, unit):
    assert least(write(tmp_path / "e.parquet", times, kind), unit) == [0]


class Tracker:
    """As much of a runner's tracker as a reader asks for."""

    def __init__(self, start, stop):
        self.start, self.stop, self.left = start, stop, None

    def current_restriction(self):
        return OffsetRange(self.start, self.stop)

    def try_claim(self, number):
        self.claimed = number
        return number < self.stop

    def defer_remainder(self):
        self.left = self.claimed + 1


def steps_of(parts, **fields):
    """Read until nothing is left; return of each step its events' times and stamps, and the watermark after it."""
    reader, start, steps = OrderedParts(parts, FieldMapping(**({"time_zone": "UTC"} | fields))), 0, []
    estimator = ManualWatermarkEstimator(None)
    while start is not None:
        tracker = Tracker(start, len(parts))
        found = []
        for each in reader.process(reader.planned, tracker, estimator):
            assert isinstance(each, TimestampedValue)
            times = unpack(each.value)["time"].cast(pa.int64()).to_pylist()
            found += [(time, each.timestamp.micros) for time in times]
        reached = estimator.current_watermark()
        steps.append((found, reached and reached.micros))
        start = tracker.left
    return steps


def test_the_watermark_is_the_least_time_of_what_is_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "ROWS_AT_ONCE", 2)
    hours = [5, 1, 9, 7, 8, 2]
    write(tmp_path / "e.parquet", [START + hour * HOUR for hour in hours])
    parts = ReadInOrder(cut(tmp_path / "e.parquet"), FieldMapping()).parts
    steps = steps_of(parts)
    assert [[(time - START) // HOUR for time, _ in found] for found, _ in steps] == [[5, 1], [8, 2], [9, 7]]
    assert [(reached - START) // HOUR for _, reached in steps] == [2, 7, 7]
    assert all(stamp == min(time for time, _ in found) for found, _ in steps for _, stamp in found)


def test_small_parts_are_read_together(tmp_path):
    write(tmp_path / "e.parquet", [START + number for number in range(20)])
    steps = steps_of(cut(tmp_path / "e.parquet"))
    assert [len(found) for found, _ in steps] == [20]


def test_an_old_event_only_delays(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "ROWS_AT_ONCE", 2)
    write(tmp_path / "e.parquet", [START, START + 1, START + HOUR, 5, START + 2 * HOUR, START + 2 * HOUR])
    parts = ReadInOrder(cut(tmp_path / "e.parquet"), FieldMapping()).parts
    assert [part.group for part in parts] == [1, 0, 2]
    assert [reached for _, reached in steps_of(parts)] == [START, START + 2 * HOUR, START + 2 * HOUR]


def test_an_event_before_its_parts_least_time_is_stamped_with_that(tmp_path):
    path = tmp_path / "e.parquet"
    write(path, [START, START + HOUR])
    lie(path, START, START + 3 * HOUR)
    ((found, _),) = steps_of(cut(path))
    assert found == [(START, START + 3 * HOUR), (START + HOUR, START + 3 * HOUR)]


def test_dead_letters_come_with_the_part(tmp_path):
    path = tmp_path / "e.parquet"
    write(path, [START, None])
    reader = OrderedParts(cut(path), FieldMapping())
    found = list(reader.process(reader.planned, Tracker(0, 1), ManualWatermarkEstimator(None)))
    (letter,) = [each for each in found if isinstance(each, TaggedOutput)]
    assert letter.value.timestamp.micros == START
    assert letter.value.value.reason == "time must be present and not empty"


def test_a_file_that_grows_while_it_is_read_ends_the_run(tmp_path):
    path = tmp_path / "e.parquet"
    write(path, [START, START + HOUR])
    parts = cut(path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(InputFileError, match="must not change while a run reads it; start the run again"):
        steps_of(parts)


@pytest.mark.parametrize(
    ("runner", "options", "moves"),
    [
        ("FnApiRunner", ["--streaming"], False),
        ("PrismRunner", [], True),
        ("FlinkRunner", [], False),
        ("FlinkRunner", ["--streaming"], True),
    ],
)
def test_runners_that_move_watermarks_read_in_order(tmp_path, runner, options, moves):
    pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={runner}", *options]))
    assert moves_watermarks(pipeline) is moves
    write(tmp_path / "a.parquet", [START])
    (tmp_path / "b.csv").write_text("user,item,time\nu,i,2024-01-01\n")
    _ = pipeline | ReadEvents(str(tmp_path / "*"))
    labels = " ".join(sorted(pipeline.applied_labels))
    assert ("In order" in labels) is moves
    assert "Read parts" in labels


def test_a_job_that_is_restored_with_other_files_refuses(tmp_path):
    path = write(tmp_path / "events.parquet", [START, START + 1], MICROS)
    started, reader = (OrderedParts(parts, FieldMapping()) for parts in (cut(path), cut(path)[:1]))
    with pytest.raises(InputFileError, match="--input must match the files with which the job was started"):
        next(reader.process((2, started.planned[1]), Tracker(0, 2), ManualWatermarkEstimator(None)))
