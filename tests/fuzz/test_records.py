"""One record more is one event more, one dead letter, or a refusal that names the file; others stay as they are."""

from __future__ import annotations

import csv
import io
import json

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_reading import CANARY, EXPECTED, HONEST, START, lines_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

ODD = [
    *("", " ", "\x00", "\ufeff", "\u202e", "\ud800", "e\u0301", "a\nb", "a\rb", '"', '""', ",", "\\", "x" * 70_000),
    *("NaN", "inf", "-inf", "1e400", "1e-999999999", "1e999999999", "0x10", "9" * 40, "-1", "+5", "1_000", "٣"),
    *("2024-02-30", "2024-01-01T24:00", "0000-01-01", "9999-12-31T23:59:59-23:59", "2024-01-01T00:00:00.1234567890Z"),
    *("null", "[]", "{}", "true", f"{CANARY},{CANARY}", "=1+1", "%s%n", "../../etc/passwd", "<script>"),
]
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=12), st.just(CANARY))
ANY = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.integers(START, START + 10),
    st.lists(TEXTS, max_size=2),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
)
CSV_LINES = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    st.lists(st.sampled_from(['"', ",", "\r", CANARY, "1700000005", "x,", '",', ',"', '""', " "]), max_size=9)
    .map("".join)
    .map(str.encode),
    st.lists(TEXTS.filter(lambda text: "\ud800" not in text), min_size=1, max_size=5).map(
        lambda row: written(row).encode("utf-8", "surrogatepass")
    ),
)
JSON_LINES = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    st.dictionaries(st.sampled_from(["user", "item", "time", "\ud800", CANARY]), ANY).map(
        lambda row: json.dumps(row).encode()
    ),
    ANY.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"[" * 100_000, b'{"a":' * 9_000, b'{"user":"u"},{"user":"v"}', b"1" * 5_000, b"NaN"]),
)
BLANK = b" \t\r\v\f\x1c\x1d\x1e\x1f\x85\xa0"


def written(row):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(row)  # both are quoted then
    return text.getvalue().removesuffix("\r\n")


def check(found, number=1):
    """Check what a file with some records more gives."""
    if found.error:
        return
    lost = EXPECTED - found.events
    assert not lost, f"{lost.total()} events of others are lost, such as {next(iter(lost))}"
    assert (found.events - EXPECTED).total() + len(found.letters) <= number


@SETTINGS
@given(line=CSV_LINES, place=st.integers(1, len(HONEST) + 1), quote=st.sampled_from(["double", "none"]))
@example(
    line=b'v,"' + b"".join(b"x%d,item,1700000005\n" % n for n in range(30)) + b'",1700000005', place=3, quote="double"
)
@example(line=b'v,"x', place=3, quote="double")
@example(line=b"\r" * 100, place=1, quote="double")
def test_a_line_of_csv(line, place, quote, tmp_path, read):
    path, lines = tmp_path / "a.csv", lines_of("csv")
    path.write_bytes(b"\n".join([*lines[:place], line, *lines[place:]]) + b"\n")
    found = read(path, time_unit="s", quote=quote)
    check(found, line.count(b"\n") + 1 if quote == "none" else 1)
    assert not found.error or (str(path) in found.error and b'"' in line and quote == "double"), found.error
    if not found.error and line.strip(BLANK) and not found.letters:
        assert (found.events - EXPECTED).total() or b"\x1c" <= line[:1] <= b"\xa0"


@SETTINGS
@given(line=JSON_LINES, place=st.integers(0, len(HONEST)))
def test_a_line_of_json(line, place, tmp_path, read):
    path, lines = tmp_path / "a.jsonl", lines_of("jsonl")
    path.write_bytes(b"\n".join([*lines[:place], line, *lines[place:]]) + b"\n")
    found = read(path, time_unit="s")
    assert not found.error
    check(found)


ARROW = {
    "text": (pa.string(), st.text(max_size=9) | st.sampled_from([text for text in ODD if text != "\ud800"])),
    "large text": (pa.large_string(), st.text(max_size=9)),
    "bytes": (pa.binary(), st.binary(max_size=9)),
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float64(), st.floats()),
    "half": (pa.float32(), st.floats(width=32)),
    "decimal": (pa.decimal128(38, 0), st.decimals(-(10**37), 10**37, places=0)),
    "cents": (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    "date": (pa.date32(), st.dates()),
    "moment": (pa.timestamp("ns", "UTC"), st.integers(-(2**63), 2**63 - 1)),
    "local": (pa.timestamp("us"), st.integers(-(2**63), 2**63 - 1)),
    "uuid": (pa.uuid(), st.binary(min_size=16, max_size=16)),
    "list": (pa.list_(pa.string()), st.lists(st.text(max_size=3), max_size=2)),
    "struct": (pa.struct([("x", pa.int8())]), st.just({"x": 1})),
    "null": (pa.null(), st.none()),
}
COLUMN = st.sampled_from(sorted(ARROW)).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(st.none() | ARROW[name][1], min_size=4, max_size=4), st.booleans())
)


def column_of(name, values, coded):
    array = pa.array(values, ARROW[name][0])
    return array.dictionary_encode() if coded and name in ("text", "int64", "date", "bytes", "decimal") else array


@SETTINGS
@given(columns=st.dictionaries(st.sampled_from(["user", "item", "time", "other"]), COLUMN, min_size=1))
def test_columns_of_parquet(columns, tmp_path, read):
    table = {"user": [f"{CANARY} {row}" for row in range(4)], "item": [CANARY] * 4, "time": [START] * 4}
    table |= {name: column_of(*column) for name, column in columns.items()}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet", time_unit="s")
    if found.error:
        assert str(tmp_path / "a.parquet") in found.error
    else:
        assert found.events.total() + len(found.letters) == 4


AVRO = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
AVRO += [
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "bytes", "logicalType": "decimal", "precision": 30},
    {"type": "array", "items": "string"},
]
PLAIN = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=9),
    "string": st.text(max_size=9),
    "array": st.lists(st.text(max_size=3), max_size=2),
}


def plain(kind):
    """Return a type without its logical one, and values of it: fastavro would not write times that there are not."""
    return (
        ({key: value for key, value in kind.items() if key != "logicalType"}, kind["type"])
        if isinstance(kind, dict)
        else (kind, kind)
    )


AVRO_COLUMN = st.sampled_from(range(len(AVRO))).flatmap(
    lambda place: st.tuples(st.just(place), st.lists(PLAIN[plain(AVRO[place])[1]], min_size=4, max_size=4))
)


@SETTINGS
@given(columns=st.dictionaries(st.sampled_from(["user", "item", "time"]), AVRO_COLUMN, min_size=1))
@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_fields_of_avro(codec, columns, tmp_path, read):
    kinds = {"user": "string", "item": "string", "time": "long"}
    rows = [{"user": f"{CANARY} {row}", "item": CANARY, "time": START} for row in range(4)]
    stored = dict(kinds)
    for name, (place, values) in columns.items():
        kinds[name], stored[name] = AVRO[place], plain(AVRO[place])[0]
        rows = [row | {name: value} for row, value in zip(rows, values, strict=True)]
    whole = {"type": "record", "name": "event", "fields": [{"name": name, "type": stored[name]} for name in kinds]}
    text = io.BytesIO()
    fastavro.writer(text, whole, rows, codec=codec, sync_marker=bytes(16))
    named = whole | {"fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    header, other = io.BytesIO(), io.BytesIO()
    fastavro.writer(header, named, [], codec=codec, sync_marker=bytes(16))
    fastavro.writer(other, whole, [], codec=codec, sync_marker=bytes(16))
    (tmp_path / "a.avro").write_bytes(header.getvalue() + text.getvalue()[len(other.getvalue()) :])
    found = read(tmp_path / "a.avro", time_unit="s")
    if found.error:
        assert str(tmp_path / "a.avro") in found.error
    else:
        assert found.events.total() + len(found.letters) == 4
