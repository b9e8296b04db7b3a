import json
import logging
from datetime import UTC, datetime, timedelta

import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from privstream.pipelines.sources import text_lines
from privstream.pipelines.sources.event_files import Damage, Part
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.found_files import FORMATS, format_of, list_parts, match_files
from privstream.pipelines.sources.readers import ReadEvents

START = datetime(2024, 1, 1, tzinfo=UTC)
START_MICROS = 1_704_067_200_000_000
ITEMS = ["plain", 'a "quoted", item', "日本 é e\u0301", "x" * (1 << 14), " ", "\\n"]
EVENTS = [
    {"user": f"u{number % 7:03}", "item": ITEMS[number % len(ITEMS)], "time": START + timedelta(seconds=number)}
    for number in range(60)
]
WIRE = [
    {"user": event["user"], "item": event["item"], "time": START_MICROS + 10**6 * number}
    for number, event in enumerate(EVENTS)
]
AVRO_FIELDS = [
    {"name": "user", "type": ["null", "string"]},
    {"name": "item", "type": "string"},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]


def write_avro(path, events=EVENTS, fields=AVRO_FIELDS, **options):
    with path.open("wb") as stream:
        fastavro.writer(stream, {"type": "record", "name": "Event", "fields": fields}, events, **options)


def write_parquet(path, events=EVENTS, **options):
    pq.write_table(pa.Table.from_pylist(events), path, **options)


def write_jsonl(path, events=EVENTS):
    lines = [json.dumps(event | {"time": event["time"].isoformat()}) + "\n" for event in events]
    path.write_text("".join(lines), encoding="utf-8")


def write_csv(path, events=EVENTS):
    pa_csv.write_csv(pa.Table.from_pylist([event | {"time": event["time"].isoformat()} for event in events]), path)


WRITERS = {"avro": write_avro, "parquet": write_parquet, "jsonl": write_jsonl, "csv": write_csv}


@pytest.mark.parametrize("format", WRITERS)
def test_every_format_gives_the_same_events(format, tmp_path, read):
    WRITERS[format](tmp_path / f"events.{format}")
    outcome = read(tmp_path / f"events.{format}")
    assert outcome.rows == WIRE
    assert outcome.letters == []
    assert outcome.counters == {"events_read": 60}


def test_a_glob_reads_files_of_several_formats_together(tmp_path, read):
    for start, (format, write) in zip(range(0, 60, 15), WRITERS.items(), strict=True):
        write(tmp_path / f"part-{start}.{format}", EVENTS[start : start + 15])
    assert read(tmp_path / "part-*").rows == WIRE


def test_the_format_may_be_stated(tmp_path, read):
    write_csv(tmp_path / "events.txt")
    assert read(tmp_path / "events.txt", format="csv").rows == WIRE
    with pytest.raises(ValueError, match="--input_format must be one of avro, parquet, jsonl, csv, xlsx, got 'xml'"):
        match_files("x", "xml")


@pytest.mark.parametrize("format", WRITERS)
def test_fields_may_have_other_names_and_streams(format, tmp_path, read):
    events = [{"who": n, "what": f"i{n}", "when": n, "where": f"s{n}", "user": 1.5} for n in range(3)]
    path = tmp_path / f"events.{format}"
    if format == "avro":
        kinds = {"who": "long", "what": "string", "when": "long", "where": "string", "user": "double"}
        write_avro(path, events, [{"name": name, "type": kind} for name, kind in kinds.items()])
    elif format == "jsonl":
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    else:
        (pq.write_table if format == "parquet" else pa_csv.write_csv)(pa.Table.from_pylist(events), path)
    outcome = read(path, user="who", item="what", time="when", time_unit="ms")
    assert outcome.rows == [{"user": str(n), "item": f"i{n}", "time": n * 1000} for n in range(3)]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
def test_avro_codecs_and_many_blocks(codec, tmp_path, read):
    write_avro(tmp_path / "e.avro", codec=codec, sync_interval=100)
    assert read(tmp_path / "e.avro").rows == WIRE


@pytest.mark.parametrize("unit", ["millis", "micros", "nanos"])
def test_avro_timestamps_keep_their_unit(unit, tmp_path, read):
    times = {"millis": 1_704_067_200_000, "micros": START_MICROS, "nanos": START_MICROS * 1000}
    logical = {"name": "time", "type": ["null", {"type": "long", "logicalType": f"timestamp-{unit}"}]}
    write_avro(tmp_path / "e.avro", [{"user": "u", "item": "i", "time": times[unit]}], [*AVRO_FIELDS[:2], logical])
    assert read(tmp_path / "e.avro").rows == [{"user": "u", "item": "i", "time": START_MICROS}]


def test_avro_enums_fixed_and_bytes_are_text(tmp_path, read):
    fields = [
        {"name": "user", "type": {"type": "fixed", "name": "Id", "size": 2}},
        {"name": "item", "type": {"type": "enum", "name": "Kind", "symbols": ["tea", "coffee"]}},
        {"name": "other", "type": {"type": "array", "items": "Kind"}},
        AVRO_FIELDS[2],
    ]
    event = {"user": b"u1", "item": "tea", "other": ["coffee"], "time": START}
    write_avro(tmp_path / "e.avro", [event], fields)
    rows = read(tmp_path / "e.avro").rows
    assert rows == [{"user": "u1", "item": "tea", "time": START_MICROS}]


@pytest.mark.slow
def test_parquet_is_cut_into_row_groups_and_long_rows_into_small_batches(tmp_path):
    write_parquet(tmp_path / "e.parquet", row_group_size=10, use_dictionary=False)
    (file,) = match_files(str(tmp_path / "e.parquet"))
    assert [(part.start, part.end) for part in list_parts(file)] == [(n, n + 1) for n in range(6)]
    wide = pa.table({"item": ["x" * (1 << 20)] * 200})
    pq.write_table(wide, tmp_path / "wide.parquet", use_dictionary=False)
    batches = list(FORMATS["parquet"].read(str(tmp_path / "wide.parquet"), Part(0, 1), ["item"]))
    assert [len(batch.columns["item"]) for batch in batches] == [128, 72]


def test_a_parquet_footer_is_parsed_once_until_the_file_is_another_one(tmp_path, monkeypatch):
    parsed = []
    read_metadata = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda stream: parsed.append(1) or read_metadata(stream))

    def items(path):
        parts = [Part(number, number + 1) for number in range(6)]
        found = [batch for part in parts for batch in FORMATS["parquet"].read(path, part, ["item"])]
        return [item for batch in found for item in batch.columns["item"].to_pylist()]

    path = tmp_path / "footer.parquet"
    write_parquet(path, row_group_size=10)
    assert items(str(path)) == [event["item"] for event in EVENTS]
    assert len(parsed) == 1
    write_parquet(path, EVENTS[::-1], row_group_size=10)
    assert items(str(path)) == [event["item"] for event in EVENTS[::-1]]
    assert len(parsed) == 2


def test_lines_are_numbered_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 7)
    (tmp_path / "e.txt").write_bytes(b"\xef\xbb\xbffirst\r\n\n  \nfourth line\nfifth\n\n\nlast")
    blocks = list(text_lines.read_lines(str(tmp_path / "e.txt")))
    assert [number for block in blocks for number in block.numbers] == [1, 4, 5, 8]
    assert [text for block in blocks for text in block.texts] == [b"first", b"fourth line", b"fifth", b"last"]


@pytest.mark.parametrize("block_bytes", [10, 100, 1 << 20])
@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_text_gives_the_same_events_whatever_the_blocks(format, block_bytes, tmp_path, monkeypatch):
    path = tmp_path / f"e.{format}"
    short = [event for event in EVENTS if len(event["item"]) < 100]
    WRITERS[format](path, short)
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", block_bytes)
    found = []
    for events in FORMATS[format].read(str(path), Part(0, 0), ["item"]):
        assert not isinstance(events, Damage)
        column = events.columns["item"]
        found += column if isinstance(column, list) else [value.decode() for value in column.to_pylist()]
    assert found == [event["item"] for event in short]


def test_csv_users_keep_their_leading_zeros(tmp_path, read):
    (tmp_path / "e.csv").write_text("time,user,item\n1,007,1.50\n2,7,true\n")
    rows = read(tmp_path / "e.csv", time_unit="s").rows
    assert [(row["user"], row["item"]) for row in rows] == [("007", "1.50"), ("7", "true")]


def test_json_numbers_are_their_decimal_text(tmp_path, read):
    (tmp_path / "e.jsonl").write_text(
        '{"user":5,"item":"a","time":1.5}\n{"user":"5","item":12345678901234567890,"time":2}\n'
    )
    assert read(tmp_path / "e.jsonl", time_unit="s").rows == [
        {"user": "5", "item": "a", "time": 1_500_000},
        {"user": "5", "item": "12345678901234567890", "time": 2_000_000},
    ]


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("a.avro", "avro"),
        ("a.PARQUET", "parquet"),
        ("b.c.ndjson", "jsonl"),
        ("a.jsonl.gz", "jsonl"),
        ("a.csv.zst", "csv"),
    ],
)
def test_formats_by_ending(path, format):
    assert format_of(path) == format


def test_display_data_and_logs_show_no_values(tmp_path, read, caplog):
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "e.jsonl"
    path.write_text('{"user":"secret-1","item":"secret-2","time":-1}\n{"user":"secret-3"\n')
    outcome = read(path, time_unit="s")
    assert [letter.position for letter in outcome.letters] == ["line 1", "line 2"]
    assert "secret" not in caplog.text
    assert "secret" not in "".join(outcome.counters)
    assert ReadEvents(str(path), FieldMapping(time_unit="s")).display_data() == {"pattern": str(path), "files": 1}
