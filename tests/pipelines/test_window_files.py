"""One file for each window, whole, never a second answer; the end is said."""

import os
import stat
import time
from typing import NamedTuple

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.sinks.row_files import read_row_file, whole_file, write_once
from privstream.pipelines.sinks.window_files import WriteDeadLetterFiles, WriteWindowFiles, file_name, moment
from privstream.pipelines.sinks.writers import WriteRows
from privstream.transforms.events.dead_letters import DeadLetter

HOUR = 3600


class Count(NamedTuple):
    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    count: int


class Reported(NamedTuple):
    stream: str
    window_start: Timestamp
    window_end: Timestamp
    item: str
    reported_at: Timestamp


class Plain(NamedTuple):
    item: str
    count: int


def row(stream: str, hour: int, item: str, count: int = 1) -> Count:
    return Count(stream, Timestamp(HOUR * hour), Timestamp(HOUR * (hour + 1)), item, count)


def run(rows, folder, format="jsonl", order=("-count",)):
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    stamped = [TimestampedValue(row, row.window_end) for row in rows]
    _ = pipeline | beam.Create(stamped) | WriteWindowFiles(str(folder), Count, format, order)
    result = pipeline.run()
    result.wait_until_finish()
    return result.metrics().query()


def write(*arguments, **options) -> dict[str, int]:
    counters = run(*arguments, **options)["counters"]
    return {c.key.metric.name.removeprefix("window_files_"): c.committed for c in counters}


ROWS = [row("no", 0, "a", 2), row("no", 0, "b", 5), row("se", 0, "a"), row("no", 1, "a")]


@pytest.mark.parametrize("format", ["jsonl", "avro", "parquet", "csv"])
def test_each_window_and_stream_has_a_file(tmp_path, format):
    assert write(ROWS, tmp_path, format)["written"] == 3
    first = tmp_path / f"19700101T000000Z_19700101T010000Z_no.{format}"
    assert read_row_file(str(first), Count) == [ROWS[1], ROWS[0]]
    assert len(os.listdir(tmp_path)) == 4
    assert (tmp_path / "_END").read_bytes() == b""


def test_the_time_from_the_end_of_a_window_to_its_file_is_measured(tmp_path):
    hour = int(time.time()) // HOUR - 1
    before = (time.time() - (hour + 1) * HOUR) * 1000
    (latency,) = run([row("", hour, "a")], tmp_path)["gauges"]
    assert latency.key.metric.name == "window_latency_ms"
    assert before - 1 <= latency.committed.value <= (time.time() - (hour + 1) * HOUR) * 1000
    (tmp_path / "_END").unlink()
    assert run([row("", hour, "a")], tmp_path)["gauges"] == []  # it was there already


@pytest.mark.parametrize("format", ["jsonl", "avro", "parquet", "csv"])
def test_a_replay_gives_the_same_bytes_in_whatever_order_rows_come(tmp_path, format):
    assert write(ROWS, tmp_path, format)["written"] == 3
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    (tmp_path / "_END").unlink()
    counters = write(ROWS[::-1], tmp_path, format)
    assert (counters.get("repeated", 0), counters.get("refused", 0)) == (3, 0)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_rows_without_a_window_go_by_the_moment_at_which_they_are_published(tmp_path):
    rows = [(Plain("b", 1), 1.25), (Plain("a", 2), 1.25), (Plain("c", 3), 7)]
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        stamped = pipeline | beam.Create([TimestampedValue(row, at) for row, at in rows])
        _ = stamped | WriteWindowFiles(str(tmp_path), Plain, "jsonl", ("item",))
    found = {path.name: read_row_file(str(path), Plain) for path in tmp_path.glob("*.jsonl")}
    assert found == {
        "19700101T000001.25Z.jsonl": [Plain("a", 2), Plain("b", 1)],
        "19700101T000007Z.jsonl": [Plain("c", 3)],
    }
    assert (tmp_path / "_END").exists()


def test_rows_of_earlier_windows_are_in_the_file_of_the_window_after_which_they_are_published(tmp_path):
    rows = [
        Reported("no", Timestamp(HOUR * hour), Timestamp(HOUR * (hour + 1)), "a", Timestamp(HOUR * (at + 1)))
        for hour, at in ((0, 2), (1, 2), (2, 2), (3, 3))
    ]
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        stamped = pipeline | beam.Create([TimestampedValue(row, row.reported_at) for row in rows[::-1]])
        _ = stamped | WriteWindowFiles(str(tmp_path), Reported, "jsonl", ("window_start",))
    found = {path.name: read_row_file(str(path), Reported) for path in tmp_path.glob("*.jsonl")}
    assert found == {
        "19700101T020000Z_19700101T030000Z_no.jsonl": rows[:3],
        "19700101T030000Z_19700101T040000Z_no.jsonl": rows[3:],
    }


def test_a_second_answer_is_refused_and_counted(tmp_path):
    write(ROWS[:1], tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    first = file.read_bytes()
    (tmp_path / "_END").unlink()
    assert write([row("no", 0, "a", 99)], tmp_path)["refused"] == 1
    assert file.read_bytes() == first


def test_a_run_without_rows_says_its_end(tmp_path):
    write([], tmp_path)
    assert os.listdir(tmp_path) == ["_END"]


def test_writing_once_never_shows_half_a_file_nor_leaves_one(tmp_path):
    path = str(tmp_path / "file")
    assert [write_once(path, b"1"), write_once(path, b"1"), write_once(path, b"2")] == [
        "written",
        "repeated",
        "refused",
    ]
    assert (tmp_path / "file").read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["file"]


def test_names_are_short_plain_and_different():
    assert file_name("", 0, HOUR * 10**6, "avro") == "19700101T000000Z_19700101T010000Z.avro"
    assert moment(1_500_000) == "19700101T000001.5Z"
    assert file_name("../a b", 0, 10**6, "avro") == "19700101T000000Z_19700101T000001Z_..%2Fa%20b.avro"
    long = [file_name("æ" * 300 + end, 0, 1, "avro") for end in "ab"]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 200
    assert file_name("x" * 101, 0, 1, "avro") != file_name("x" * 102, 0, 1, "avro")


def test_errors_name_the_option(tmp_path):
    with pytest.raises(ValueError, match=r"--output must be a folder that exists when the input is watched, got "):
        WriteWindowFiles(str(tmp_path / "missing"), Count, "jsonl")
    with pytest.raises(ValueError, match=r"--output_format must be one of avro, parquet, jsonl, csv, got 'xml'"):
        WriteWindowFiles(str(tmp_path), Count, "xml")
    (tmp_path / "_END").touch()
    with pytest.raises(ValueError, match="--output must be a folder of a run that has not ended"):
        WriteWindowFiles(str(tmp_path), Count, "jsonl")


def test_bounded_avro_files_repeat_their_bytes_too(tmp_path):
    for name in ("one.avro", "two.avro"):
        with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
            _ = pipeline | beam.Create(ROWS) | WriteRows(str(tmp_path / name), Count, order=("stream", "-count"))
    assert (tmp_path / "one.avro").read_bytes() == (tmp_path / "two.avro").read_bytes()


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_of_dead_letters_are_for_their_owner_alone(tmp_path, open_umask):
    letters = [DeadLetter("reason", "source", f"line {number}", "record") for number in range(3)]
    for name in ("letters", "rows"):
        (tmp_path / name).mkdir()
    (tmp_path / "dead.jsonl").touch(0o666)  # of an earlier run
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    made = pipeline | beam.Create([TimestampedValue(letter, 5) for letter in letters])
    made | "Folder" >> WriteDeadLetterFiles(str(tmp_path / "letters"))
    made | "File" >> WriteRows(str(tmp_path / "dead.jsonl"), DeadLetter, private=True)
    made | "Rows" >> WriteRows(str(tmp_path / "rows" / "rows.jsonl"), DeadLetter)
    pipeline.run().wait_until_finish()
    (file,) = (tmp_path / "letters").iterdir()
    assert mode(file) == mode(tmp_path / "dead.jsonl") == 0o600
    assert mode(tmp_path / "rows" / "rows.jsonl") == 0o666


def test_no_part_of_a_private_file_can_be_read_by_others_while_it_is_written(tmp_path, open_umask):
    with whole_file(str(tmp_path / "dead.jsonl"), private=True) as stream:
        stream.write(b"x")
        (partial,) = tmp_path.iterdir()
        assert mode(partial) == 0o600
