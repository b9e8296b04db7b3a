import json
import logging
from datetime import UTC, datetime, timedelta

import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

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


@pytest.mark.parametrize("format", ["avro", "parquet", "jsonl", "csv"])
def test_every_format_gives_the_same_events(format, tmp_path, read):
    path, texts = tmp_path / f"events.{format}", [event | {"time": event["time"].isoformat()} for event in EVENTS]
    if format == "avro":
        with path.open("wb") as stream:
            fastavro.writer(stream, {"type": "record", "name": "Event", "fields": AVRO_FIELDS}, EVENTS)
    elif format == "parquet":
        pq.write_table(pa.Table.from_pylist(EVENTS), path)
    elif format == "jsonl":
        path.write_text("".join(f"{json.dumps(event)}\n" for event in texts), encoding="utf-8")
    else:
        pa_csv.write_csv(pa.Table.from_pylist(texts), path)
    outcome = read(path)
    assert outcome.rows == WIRE
    assert outcome.letters == []
    assert outcome.counters == {"events_read": 60}


def test_logs_and_counters_show_no_values(tmp_path, read, caplog):
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "e.jsonl"
    path.write_text('{"user":"secret-1","item":"secret-2","time":-1}\n{"user":"secret-3"\n')
    outcome = read(path, time_unit="s")
    assert [letter.position for letter in outcome.letters] == ["line 1", "line 2"]
    assert "secret" not in caplog.text
    assert "secret" not in "".join(outcome.counters)
