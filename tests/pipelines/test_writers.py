"""Rows in files, in files of windows, and on their way to a topic or a table."""

import csv
import io
import json
import math
import os
import stat
import time
from datetime import UTC, datetime
from typing import NamedTuple, get_type_hints

import apache_beam as beam
import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import WORDS, question
from privstream.pipelines.model.counted import HeavyHitters
from privstream.pipelines.sinks import row_files
from privstream.pipelines.sinks.destination import Destination, UnreachableError
from privstream.pipelines.sinks.row_files import (
    MissingColumnsError,
    check_destination,
    read_row_file,
    read_rows,
    sort_rows,
    whole_file,
    with_item_columns,
    write_json,
    write_once,
    write_row_file,
)
from privstream.pipelines.sinks.terminal_table import file_or_terminal, read_table
from privstream.pipelines.sinks.window_files import WriteDeadLetterFiles, WriteWindowFiles, file_name, moment
from privstream.pipelines.sinks.writers import WriteRows
from privstream.transforms.events.event_fields import DeadLetter
from privstream.transforms.rows import HeavyHitter, KeyCount, QuantileEstimate, QueryAnswer

FORMATS = ["avro", "parquet", "jsonl", "csv"]


def hitter(hour=0, item="tea", count=5.0):
    start = 1_704_067_200 + 3600 * hour
    ends = (None, None) if count is None else (max(0.0, count - 3), count + 3.0)
    return HeavyHitter(Timestamp(start), Timestamp(start + 3600), item, count, *ends, Timestamp(start), "started")


SORTED = [
    hitter(0, "tea", 9),
    hitter(0, "日本 é e\u0301", 7),
    hitter(0, 'line\nbreak\r, "quoted"', -3),
    hitter(1, "apple", 100),
    hitter(1, "pear", 100),
    hitter(1, " blank ", -4),
    hitter(1, "not counted", None),
]


class Unwritable(NamedTuple):
    values: list


def run(rows, transform, windowed=False):
    pipeline = beam.Pipeline(runner="FnApiRunner")
    created = pipeline | beam.Create(rows).with_output_types(HeavyHitter)
    if windowed:
        stamp = beam.Map(lambda row: TimestampedValue(row, row.window_start)).with_output_types(HeavyHitter)
        created = created | "Stamp" >> stamp | beam.WindowInto(FixedWindows(60))
    created | transform
    pipeline.run().wait_until_finish()


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_run_writes_one_sorted_file(format, windowed, tmp_path):
    path = tmp_path / f"out.{format}"
    run(SORTED[::-1], WriteRows(str(path), HeavyHitter, order=HeavyHitters.info.order), windowed)
    assert read_row_file(str(path), HeavyHitter) == SORTED
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_without_rows_writes_an_empty_file_with_its_schema(format, tmp_path):
    path = tmp_path / f"out.{format}"
    run([], WriteRows(str(path), HeavyHitter))
    assert read_row_file(str(path), HeavyHitter) == []
    if format == "parquet":
        assert pq.read_schema(path).names == list(HeavyHitter._fields)
    if format == "avro":
        with path.open("rb") as stream:
            assert [field["name"] for field in fastavro.reader(stream).writer_schema["fields"]] == list(
                HeavyHitter._fields
            )


def test_times_are_timestamps_for_other_readers(tmp_path):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    for format in FORMATS:
        write_row_file(str(tmp_path / f"out.{format}"), HeavyHitter, [hitter()])
    with (tmp_path / "out.avro").open("rb") as stream:
        assert next(iter(fastavro.reader(stream)))["window_start"] == start
    assert str(pq.read_schema(tmp_path / "out.parquet").field("window_start").type) == "timestamp[us, tz=UTC]"
    assert pq.read_table(tmp_path / "out.parquet")["window_start"].to_pylist() == [start]
    assert json.loads((tmp_path / "out.jsonl").read_text())["window_start"] == "2024-01-01T00:00:00Z"
    with (tmp_path / "out.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["window_start"], row["item"], row["people"]) == ("2024-01-01T00:00:00Z", "tea", "5")


def test_a_missing_number_is_null_for_other_readers(tmp_path):
    for format in FORMATS:
        write_row_file(str(tmp_path / f"out.{format}"), HeavyHitter, [hitter(count=None)])
    with (tmp_path / "out.avro").open("rb") as stream:
        reader = fastavro.reader(stream)
        assert next(iter(reader))["people"] is None
        types = {field["name"]: field["type"] for field in reader.writer_schema["fields"]}
    assert (types["people"], types["lower"], types["item"]) == (["null", "double"], ["null", "double"], "string")
    assert pq.read_table(tmp_path / "out.parquet")["people"].to_pylist() == [None]
    assert json.loads((tmp_path / "out.jsonl").read_text())["people"] is None
    with (tmp_path / "out.csv").open(newline="") as stream:
        assert next(csv.DictReader(stream))["people"] == ""


def test_a_number_that_must_be_there_is_not_read_as_missing(tmp_path):
    write_row_file(
        str(tmp_path / "out.csv"),
        KeyCount,
        [KeyCount(*hitter()[:3], 5.1, 3.0, 7.0, 5)],
    )
    text = (tmp_path / "out.csv").read_text()
    (tmp_path / "out.csv").write_text(text.replace(",5.1,3,", ",5.1,,"))
    with pytest.raises(ValueError):
        read_row_file(str(tmp_path / "out.csv"), KeyCount)


@pytest.mark.parametrize("format", FORMATS)
def test_columns_that_are_missing_are_named(format, tmp_path):
    def without(*names):
        kept = {name: kind for name, kind in get_type_hints(QuantileEstimate).items() if name not in names}
        earlier = NamedTuple("QuantileEstimate", [*kept.items()])
        path = str(tmp_path / f"{len(names)}.{format}")
        write_row_file(path, earlier, [earlier(*(getattr(counted, name) for name in kept))])
        return path

    times = Timestamp(0), Timestamp(60)
    counted = QuantileEstimate(*times, 0.5, 7.0, 2.0, 11.0)
    with pytest.raises(MissingColumnsError) as caught:
        read_row_file(without("lower", "upper"), QuantileEstimate)
    assert str(caught.value) == (
        "without lower, upper: an earlier version of privstream wrote the rows, and reads them, or they are of another "
        "kind"
    )
    with pytest.raises(ValueError, match=r"--input must have QuantileEstimate rows that .* got .* without lower"):
        read_rows("--input", without("lower", "upper"), QuantileEstimate)


def counts_and_table() -> tuple[list[KeyCount], pa.Table]:
    """Return rows, and the same as a table with times in microseconds."""
    end = Timestamp(60)
    rows = [
        KeyCount(Timestamp(0), end, item, 2.5, 3.0, level, count)
        for item, count, level in (
            ("tea, hot", 7, None),
            ('milk, "a, ""b"""', 9, 0.1),
            ("日本, é", 9, 2.0),
            ("x, y", 10, 3.0),
            ("a, tea", -7, 7.5),
        )
    ]
    plain = [[value.micros if isinstance(value, Timestamp) else value for value in row] for row in rows]
    columns = [pa.array(column) for column in zip(*plain, strict=True)]
    return rows, pa.table(columns, list(KeyCount._fields))


@pytest.mark.parametrize("names", [(), ("what", "kind")])
@pytest.mark.parametrize("format", FORMATS)
def test_a_table_is_written_as_its_rows_are(format, names, tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK_ROWS", 2)
    rows, table = counts_and_table()
    row_type = with_item_columns(KeyCount, names)
    for name, given in {"rows": rows, "table": table, "none": [], "empty": table[:0]}.items():
        write_row_file(str(tmp_path / f"{name}.{format}"), row_type, given)
    assert (tmp_path / f"table.{format}").read_bytes() == (tmp_path / f"rows.{format}").read_bytes()
    assert (tmp_path / f"empty.{format}").read_bytes() == (tmp_path / f"none.{format}").read_bytes()
    assert read_row_file(str(tmp_path / f"table.{format}"), KeyCount) == rows


class Told(NamedTuple):
    text: str
    number: float
    maybe: int | None
    yes: bool


@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_text_is_what_python_writes_value_by_value(format, as_table, tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK_ROWS", 100)
    texts = [
        "",
        "tea",
        "a, b",
        'say ""',
        "line\nbreak",
        "\r",
        " blank ",
        "100%s",
        "é",
        "e\u0301",
        "\u2028",
        "None",
        "1",
    ]
    numbers = [0.0, -0.0, 1.0, 0.1, 1e16, 1e22, 1e-7, 5e-324, 1.7976931348623157e308, -1 / 3]
    wholes = [None, 0, 1, -1, 2**62]
    given = [Told(text, number, maybe, maybe == 1) for text in texts for number in numbers for maybe in wholes]
    plain = {number: float(f"{number:.12g}") for number in numbers}
    plain |= {number: int(number) for number in numbers if number.is_integer() and abs(number) < 1e12}
    rows = [row._replace(number=plain[row.number]) for row in given]
    if format == "jsonl":
        shown = [json.dumps(row._asdict(), ensure_ascii=False).replace("\u2028", "\\u2028") for row in rows]
    else:
        quoted = {text: text if text in ("tea", "100%s", "é", "e\u0301", "None", "1") else None for text in texts}
        shown = ["text,number,maybe,yes"]
        for row in rows:
            text = quoted[row.text] or '"' + row.text.replace('"', '""') + '"'
            maybe = "" if row.maybe is None else str(row.maybe)
            shown.append(",".join([text, repr(row.number), maybe, str(row.yes).lower()]))
    given = pa.table([pa.array(column) for column in zip(*given, strict=True)], Told._fields) if as_table else given
    write_row_file(str(tmp_path / f"out.{format}"), Told, given)
    assert (tmp_path / f"out.{format}").read_bytes() == "".join(f"{line}\n" for line in shown).encode()
    assert [*map(repr, read_row_file(str(tmp_path / f"out.{format}"), Told))] == [
        repr(row._replace(number=float(row.number))) for row in rows
    ]


@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_text_has_no_number_that_is_none(format, as_table, tmp_path):
    for wrong in (math.nan, math.inf, -math.inf):
        rows = [Told("", number, None, False) for number in (1.0, wrong)]
        table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], Told._fields)
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_row_file(str(tmp_path / f"out.{format}"), Told, table if as_table else rows)
    assert os.listdir(tmp_path) == []


def test_whole_numbers_are_written_without_a_fraction(tmp_path):
    rows = [Told("", number, 1, True) for number in (0, 0.0, 1, 1.0, 1)]
    write_row_file(str(tmp_path / "out.csv"), Told, rows)
    lines = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in lines] == ["0", "0", "1", "1", "1"]


def test_tables_are_put_together_finished_and_sorted(tmp_path):
    rows, table = counts_and_table()
    order = ("-noisy", "item")

    def packed(part):
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, part.schema) as writer:
            writer.write_table(part)
        return stream.getvalue()

    pipeline = beam.Pipeline(runner="FnApiRunner")
    parts = pipeline | beam.Create([(b"2", packed(table[2:])), (b"1", packed(table[:2]))])
    finish = {"finish_table": lambda found: found.filter(pc.greater(found["noisy"], 0))}
    parts | "Some" >> WriteRows(str(tmp_path / "some.csv"), KeyCount, order=order, **finish)
    none = parts | beam.Filter(lambda part: not part)
    none | "None" >> WriteRows(str(tmp_path / "none.csv"), KeyCount, order=order, **finish)
    pipeline.run().wait_until_finish()
    kept = [row for row in rows if row.noisy > 0]
    assert read_row_file(str(tmp_path / "some.csv"), KeyCount) == sort_rows(kept, order) != kept
    assert read_row_file(str(tmp_path / "none.csv"), KeyCount) == []


def test_fractions_of_seconds_survive(tmp_path):
    row = HeavyHitter(
        Timestamp(micros=1), Timestamp(micros=1_500_000), "tea", 1.0, 1.0, 1.0, Timestamp(micros=1), "started"
    )
    for format in FORMATS:
        write_row_file(str(tmp_path / f"out.{format}"), HeavyHitter, [row])
        assert read_row_file(str(tmp_path / f"out.{format}"), HeavyHitter) == [row]


def test_dead_letters_are_written_as_json_lines(tmp_path):
    letters = [DeadLetter("reason", "source", f"line {n}", '{"user":\n"é"}') for n in range(3)]
    pipeline = beam.Pipeline(runner="FnApiRunner")
    pipeline | beam.Create(letters) | WriteRows(str(tmp_path / "dead.jsonl"), DeadLetter)
    pipeline.run().wait_until_finish()
    lines = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert sorted(line["position"] for line in lines) == ["line 0", "line 1", "line 2"]
    assert lines[0]["record"] == '{"user":\n"é"}'


def failing(row):
    raise RuntimeError("the run fails")


@pytest.mark.parametrize("before", [None, "old"])
def test_a_failed_run_leaves_what_was_there(before, tmp_path):
    path = tmp_path / "out.avro"
    if before:
        path.write_text(before)
    pipeline = beam.Pipeline(runner="FnApiRunner")
    rows = pipeline | beam.Create([hitter()]) | beam.Map(failing).with_output_types(HeavyHitter)
    rows | WriteRows(str(path), HeavyHitter)
    with pytest.raises(RuntimeError, match="the run fails"):
        pipeline.run().wait_until_finish()
    assert os.listdir(tmp_path) == ([path.name] if before else [])
    if before:
        assert path.read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_a_write_that_fails_midway_leaves_nothing(format, tmp_path):
    def rows():
        yield from [hitter()] * 50_000
        raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        write_row_file(str(tmp_path / f"out.{format}"), HeavyHitter, rows())
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_replaced_and_stale_parts_are_removed(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    (tmp_path / ".out.jsonl.0123.partial").write_text("killed")
    (tmp_path / ".other.jsonl.0123.partial").write_text("of another run")
    run(SORTED, WriteRows(str(path), HeavyHitter, order=HeavyHitters.info.order))
    assert read_row_file(str(path), HeavyHitter) == SORTED
    assert sorted(os.listdir(tmp_path)) == [".other.jsonl.0123.partial", "out.jsonl"]


@pytest.mark.parametrize("name", ["out.txt", "out", "out.xls"])
def test_an_unknown_ending_is_an_error_at_launch(name, tmp_path):
    with pytest.raises(ValueError, match=r"--output must end in \.avro, \.parquet, \.jsonl, \.csv, \.xlsx, got .*out"):
        WriteRows(str(tmp_path / name), HeavyHitter)


def test_destinations_are_checked_at_launch(tmp_path):
    (tmp_path / "folder.avro").mkdir()
    with pytest.raises(ValueError, match=r"--output must be a file, but .*folder\.avro is a folder"):
        WriteRows(str(tmp_path / "folder.avro"), HeavyHitter)
    with pytest.raises(ValueError, match=r"--dead_letter must be in a folder that exists: there is no folder .*nix"):
        WriteRows(str(tmp_path / "nix" / "out.jsonl"), DeadLetter, option="--dead_letter")
    with pytest.raises(ValueError, match=r"--output must be on a filesystem that Beam knows, got nofs://x/out\.avro"):
        check_destination("nofs://x/out.avro")
    with pytest.raises(ValueError, match="--output must not be empty"):
        check_destination("")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder in which nobody may write")
def test_an_unwritable_folder_is_an_error_at_launch():
    with pytest.raises(ValueError, match=r"--output must be writable: /proc/self: "):
        check_destination("/proc/self/out.avro")


def test_a_name_without_folder_is_written_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_destination("out.avro")
    write_row_file("out.avro", HeavyHitter, SORTED)
    assert read_row_file("out.avro", HeavyHitter) == SORTED


def test_rows_and_orders_are_checked(tmp_path):
    with pytest.raises(TypeError, match="field `values` of Unwritable must be str, int, float, bool or Timestamp"):
        WriteRows(str(tmp_path / "out.avro"), Unwritable)
    with pytest.raises(ValueError, match="order must name fields of HeavyHitter, got -size"):
        WriteRows(str(tmp_path / "out.avro"), HeavyHitter, order=("item", "-size"))


def test_unbounded_rows_are_refused(tmp_path):
    pipeline = beam.Pipeline()
    with pytest.raises(ValueError, match="WriteRows must get a bounded collection"):
        pipeline | test_stream.TestStream() | WriteRows(str(tmp_path / "out.avro"), HeavyHitter)


def test_sorting_is_by_window_count_and_item():
    assert sort_rows(SORTED[::-1], HeavyHitters.info.order) == SORTED


def test_json_is_written_whole_and_without_nan(tmp_path):
    path = tmp_path / "out.guarantee.json"
    write_json(str(path), {"epsilon": 1.0, "unit": "é"})
    assert json.loads(path.read_text()) == {"epsilon": 1.0, "unit": "é"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(str(path), {"epsilon": math.nan})
    assert json.loads(path.read_text())["epsilon"] == 1.0
    assert os.listdir(tmp_path) == [path.name]


def test_a_dash_is_a_file_that_goes_and_a_path_stays(tmp_path):
    with file_or_terminal("-") as path:
        write_row_file(path, HeavyHitter, SORTED)
        assert read_table(path, HeavyHitter).num_rows == len(SORTED)
    assert not os.path.exists(path)
    for ending in ("avro", "csv", "jsonl", "parquet"):
        with file_or_terminal(str(tmp_path / f"out.{ending}")) as path:
            write_row_file(path, HeavyHitter, SORTED)
        assert read_table(path, HeavyHitter).equals(read_table(str(tmp_path / "out.avro"), HeavyHitter))


HOUR = 3600


class Count(NamedTuple):
    window_start: Timestamp
    window_end: Timestamp
    item: str
    count: int


class Plain(NamedTuple):
    item: str
    count: int


def row(hour: int, item: str, count: int = 1) -> Count:
    return Count(Timestamp(HOUR * hour), Timestamp(HOUR * (hour + 1)), item, count)


def run_window(rows, folder, format="jsonl", order=("-count",)):
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    stamped = [TimestampedValue(row, row.window_end - MOMENT) for row in rows]
    _ = pipeline | beam.Create(stamped) | WriteWindowFiles(str(folder), Count, format, order)
    result = pipeline.run()
    result.wait_until_finish()
    return result.metrics().query()


def write(*arguments, **options) -> dict[str, int]:
    counters = run_window(*arguments, **options)["counters"]
    return {c.key.metric.name.removeprefix("window_files_"): c.committed for c in counters}


MOMENT, MILLISECOND = Duration(micros=1), Duration(micros=1000)  # some runners cut timestamps down
ROWS = [row(0, "a", 2), row(0, "b", 5), row(1, "a"), row(2, "a")]


@pytest.mark.parametrize("format", ["jsonl", "avro", "parquet", "csv"])
def test_each_window_has_a_file(tmp_path, format):
    assert write(ROWS, tmp_path, format)["written"] == 3
    first = tmp_path / f"19700101T000000Z_19700101T010000Z.{format}"
    assert read_row_file(str(first), Count) == [ROWS[1], ROWS[0]]
    assert len(os.listdir(tmp_path)) == 4
    assert (tmp_path / "_END").read_bytes() == b""


def test_the_time_from_the_end_of_a_window_to_its_file_is_measured(tmp_path):
    hour = int(time.time()) // HOUR - 1
    before = (time.time() - (hour + 1) * HOUR) * 1000
    (latency,) = run_window([row(hour, "a")], tmp_path)["gauges"]
    assert latency.key.metric.name == "window_latency_ms"
    assert before - 1 <= latency.committed.value <= (time.time() - (hour + 1) * HOUR) * 1000
    (tmp_path / "_END").unlink()
    assert run_window([row(hour, "a")], tmp_path)["gauges"] == []  # it was there already


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
        (row(hour, "a"), Timestamp(HOUR * (at + 1)) - moment)
        for hour, at, moment in ((0, 2, MOMENT), (1, 2, MOMENT), (2, 2, MILLISECOND), (3, 3, MOMENT))
    ]
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        stamped = pipeline | beam.Create([TimestampedValue(*one) for one in rows[::-1]])
        _ = stamped | WriteWindowFiles(str(tmp_path), Count, "jsonl", ("window_start",))
    found = {path.name: read_row_file(str(path), Count) for path in tmp_path.glob("*.jsonl")}
    assert found == {
        "19700101T020000Z_19700101T030000Z.jsonl": [one for one, _ in rows[:3]],
        "19700101T030000Z_19700101T040000Z.jsonl": [rows[3][0]],
    }


def test_a_second_answer_is_refused_and_counted(tmp_path):
    write(ROWS[:1], tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    first = file.read_bytes()
    (tmp_path / "_END").unlink()
    assert write([row(0, "a", 99)], tmp_path)["refused"] == 1
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
    assert file_name(0, HOUR * 10**6, "avro") == "19700101T000000Z_19700101T010000Z.avro"
    assert moment(1_500_000) == "19700101T000001.5Z"


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
            _ = pipeline | beam.Create(ROWS) | WriteRows(str(tmp_path / name), Count, order=("window_start", "-count"))
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


RUN = ["counts", "--input=events.jsonl", "--epsilon=1", "--window=1h", "--ledger=none"]
NAMED = {"item", "rule", "query", "rank", "quantile", "category", "low", "high"}
"""Fields that tell what a row is about, beside its time."""


class Kept(Destination):
    """A destination that keeps rows, or is away."""

    def check(self, *, first):
        pass

    def name(self):
        return "memory"

    def send(self, rows):
        raise UnreachableError("away")


@pytest.mark.parametrize("word", WORDS)
def test_the_key_of_a_row_is_its_time_and_what_it_is_about(word):
    spec = question(word)
    fields = set(spec.row_type._fields)
    times = {"time", "window_start"} & fields
    known = {"rank"} if "rank" in fields else NAMED & fields
    assert set(spec.key) == times | known


def sent(item: str) -> HeavyHitter:
    start, end = Timestamp(0), Timestamp(3600)
    return HeavyHitter(start, end, item, 5.0, 2.0, 8.0, start, "started")


def test_keys_name_the_run_and_are_the_same_again():
    keys = Kept("run 1", HeavyHitter, question("heavy-hitters").key).row_keys([sent("a"), sent("b")])
    assert json.loads(keys[0]) == {
        "run_id": "run 1",
        "window_start": "1970-01-01T00:00:00Z",
        "item": "a",
    }
    assert len(set(keys)) == 2
    assert keys == Kept("run 1", HeavyHitter, question("heavy-hitters").key).row_keys([sent("a"), sent("b")])
    assert set(keys).isdisjoint(Kept("run 2", HeavyHitter, question("heavy-hitters").key).row_keys([sent("a")]))


def test_rows_that_nothing_distinguishes_are_all_kept():
    answers = [QueryAnswer("q", Timestamp(1), estimate, 1.0, "measured", 1) for estimate in (5.0, 6.0, 7.0)]
    keys = Kept("run", QueryAnswer, question("queries").key).row_keys(answers)
    assert [json.loads(key).get("number") for key in keys] == [None, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output=kafka://h:1/t"], "--output must be a file or a folder; send names topics and tables"),
        (["--send=kafka://h:1/t"], "--send must be given with an output of files, which are sent from there"),
        (["--output=rows.csv", "--kafka_setting=a=b"], "--kafka-setting must be given with an input of kafka://"),
        (["--send=kafka://h:1/t", "--output=rows.txt"], "must end in .avro, .parquet, .jsonl, .csv"),
        (["--send=kafka://h:1/t", "--output=nowhere/rows.csv"], "must be in a folder that exists"),
        (["--send=kafka://h:1/t", "--output=there.csv"], "must be a new file, but there.csv exists"),
        (["--send=kafka://h:1/t", "--output=r.csv", "--kafka_setting=acks=1"], "must not set acks"),
        (["--send=kafka:h:1", "--output=r.csv"], "--send must be of the form kafka://host:port/topic"),
    ],
)
def test_options_are_refused_by_name(options, message, tmp_path, monkeypatch, capsys):
    pytest.importorskip("confluent_kafka")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"user": "u", "item": "i", "time": "2024-01-01T00:00:00Z"}\n')
    (tmp_path / "there.csv").touch()
    assert (
        cli.main([*RUN, *options, "--delta=1e-6", "--max_contributions=3", "--end=2024-01-02", "--start=2024-01-01"])
        == 2
    )
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "there.csv"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://u:secret@h/d/t", "without a password or settings: set PGPASSWORD, or write ~/.pgpass"),
        ("postgresql://u@h/d/t?password=secret", "without a password or settings"),
        ("postgresql://u@h:secret/d/t", "must be of the form postgresql://user@host:port/database/table"),
        ("postgresql://u@h/secret", "must be of the form"),
        ("postgresql://u@/d/secret", "must be of the form"),
        ("postgresql://u@h/d/secret.a.b", "must be of the form"),
        ("postgresql://u@h/d/secret/b", "must be of the form"),
    ],
)
def test_a_url_with_a_password_or_of_another_form_is_refused_and_not_quoted(url, message):
    tables = pytest.importorskip("privstream.pipelines.sinks.postgres_table", exc_type=ImportError)
    with pytest.raises(ValueError, match=r"^--output must be of the form") as error:
        tables.PostgresTable(url, "run", HeavyHitter, ("item",))
    assert message in str(error.value)
    assert "secret" not in str(error.value)


def test_a_url_says_where_the_table_is():
    tables = pytest.importorskip("privstream.pipelines.sinks.postgres_table", exc_type=ImportError)
    assert tables.parse_url("postgresql://me%40home@db.example:5433/results/trends.hourly") == (
        {"host": "db.example", "port": 5433, "user": "me@home", "dbname": "results"},
        ("trends", "hourly"),
    )
    assert tables.parse_url("postgresql://h/d/t") == ({"host": "h", "dbname": "d"}, ("t",))
