"""Rows in files, in files of windows, and on their way to a topic or a table."""

import csv
import json
import math
import os
import stat
from datetime import UTC, datetime
from typing import NamedTuple

import apache_beam as beam
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from privstream.pipelines.model.catalogue import HeavyHitters
from privstream.pipelines.sinks import row_files
from privstream.pipelines.sinks.row_files import (
    plain_table,
    read_plain,
    read_row_file,
    sort_table,
    with_item_columns,
    write_row_file,
)
from privstream.pipelines.sinks.writers import WriteDeadLetterFiles, WriteReleased, WriteRows, WriteWindowFiles
from privstream.pipelines.stores import whole_file
from privstream.transforms.batches import to_stream
from privstream.transforms.reading.fields import DeadLetter
from privstream.transforms.row_types import HeavyHitter, KeyCount

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


def test_times_are_timestamps_and_missing_numbers_null_for_other_readers(tmp_path):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    for format in FORMATS:
        write_row_file(str(tmp_path / f"out.{format}"), HeavyHitter, [hitter(), hitter(count=None)])
    with (tmp_path / "out.avro").open("rb") as stream:
        reader = fastavro.reader(stream)
        types = {field["name"]: field["type"] for field in reader.writer_schema["fields"]}
        assert [(row["window_start"], row["people"]) for row in reader] == [(start, 5), (start, None)]
    assert (types["people"], types["item"]) == (["null", "double"], "string")
    table = pq.read_table(tmp_path / "out.parquet")
    assert str(table.schema.field("window_start").type) == "timestamp[us, tz=UTC]"
    assert (table["window_start"].to_pylist(), table["people"].to_pylist()) == ([start] * 2, [5, None])
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["window_start"], line["people"]) for line in lines] == [
        ("2024-01-01T00:00:00Z", 5),
        ("2024-01-01T00:00:00Z", None),
    ]
    with (tmp_path / "out.csv").open(newline="") as stream:
        rows = [(row["window_start"], row["item"], row["people"]) for row in csv.DictReader(stream)]
    assert rows == [("2024-01-01T00:00:00Z", "tea", "5"), ("2024-01-01T00:00:00Z", "tea", "")]


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


def test_tables_are_put_together_and_sorted(tmp_path):
    rows, table = counts_and_table()
    pipeline = beam.Pipeline(runner="FnApiRunner")
    parts = pipeline | beam.Create([(b"2", to_stream(table[2:])), (b"1", to_stream(table[:2]))])
    parts | "Some" >> WriteReleased(str(tmp_path / "some.parquet"), KeyCount)
    none = parts | beam.Filter(lambda part: not part)
    none | "None" >> WriteReleased(str(tmp_path / "none.parquet"), KeyCount)
    pipeline.run().wait_until_finish()
    assert read_row_file(str(tmp_path / "some.parquet"), KeyCount) == rows
    found = read_plain(str(tmp_path / "some.parquet"), KeyCount)
    assert found == plain_table(KeyCount, rows)
    order = ("-noisy", "item")
    falling = sorted(rows, key=lambda row: (-row.noisy, row.item))
    assert sort_table(found, order) == plain_table(KeyCount, falling) != found
    assert read_row_file(str(tmp_path / "none.parquet"), KeyCount) == []


def test_an_existing_file_is_replaced_and_stale_parts_are_removed(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    (tmp_path / ".out.jsonl.0123.partial").write_text("killed")
    (tmp_path / ".other.jsonl.0123.partial").write_text("of another run")
    run(SORTED, WriteRows(str(path), HeavyHitter, order=HeavyHitters.info.order))
    assert read_row_file(str(path), HeavyHitter) == SORTED
    assert sorted(os.listdir(tmp_path)) == [".other.jsonl.0123.partial", "out.jsonl"]


HOUR = 3600


class Count(NamedTuple):
    window_start: Timestamp
    window_end: Timestamp
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


@pytest.mark.parametrize("format", FORMATS)
def test_each_window_has_a_file_and_a_replay_the_same_bytes_in_whatever_order_rows_come(tmp_path, format):
    assert write(ROWS, tmp_path, format)["written"] == 3
    first = tmp_path / f"19700101T000000Z_19700101T010000Z.{format}"
    assert read_row_file(str(first), Count) == [ROWS[1], ROWS[0]]
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    assert len(before) == 4 and before["_END"] == b""
    (tmp_path / "_END").unlink()
    counters = write(ROWS[::-1], tmp_path, format)
    assert (counters.get("repeated", 0), counters.get("refused", 0)) == (3, 0)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


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
    made | "File" >> WriteRows(str(tmp_path / "dead.jsonl"), DeadLetter, owner_only=True)
    made | "Rows" >> WriteRows(str(tmp_path / "rows" / "rows.jsonl"), DeadLetter)
    pipeline.run().wait_until_finish()
    (file,) = (tmp_path / "letters").iterdir()
    assert mode(file) == mode(tmp_path / "dead.jsonl") == 0o600
    assert mode(tmp_path / "rows" / "rows.jsonl") == 0o666


def test_no_part_of_a_private_file_can_be_read_by_others_while_it_is_written(tmp_path, open_umask):
    with whole_file(str(tmp_path / "dead.jsonl"), owner_only=True) as stream:
        stream.write(b"x")
        (partial,) = tmp_path.iterdir()
        assert mode(partial) == 0o600


@pytest.mark.parametrize(
    "url",
    ["u:secret@h/d/t", "u@h/d/t?password=secret", "u@h:secret/d/t", "u@h/secret", "u@/d/secret", "u@h/d/secret/b"],
)
def test_a_url_with_a_password_or_of_another_form_is_refused_and_not_quoted(url):
    tables = pytest.importorskip("privstream.pipelines.postgresql", exc_type=ImportError)
    with pytest.raises(ValueError, match=r"^send must be of the form") as error:
        tables.PostgresTable(f"postgresql://{url}", "run", HeavyHitter, ("item",))
    assert "secret" not in str(error.value)
