"""Files as people have them: what separates fields, encodings, forms of times and numbers, zones, folders."""

import gzip
from contextlib import suppress
from datetime import datetime
from encodings import aliases
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from privstream.pipelines.sources import formats
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.files import match_files
from privstream.pipelines.sources.formats import InputFileError
from privstream.pipelines.sources.readers import ReadEvents
from raw_rows import normalised, readings

BERLIN = {"time_zone": "Europe/Berlin", "time_format": "%d.%m.%Y %H:%M"}
FORM = "time must be a time that exists, of the form %d.%m.%Y %H:%M"


def at(text, zone="Europe/Berlin"):
    time = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    return int(time.timestamp()) * 10**6


def found(outcome):
    return sorted((row["user"], row["item"], row["time"]) for row in outcome.rows)


def faults(outcome):
    return [(letter.position, letter.reason) for letter in outcome.letters]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_first_line_shows_what_separates_fields(delimiter, tmp_path, read_all):
    rows = [["user", "item, it", "time"], ["u", '"a;b,c|d"', "2024-01-01T00:00:00Z"], ["", "i", "2024"]]
    (tmp_path / "a.csv").write_text(
        "".join(delimiter.join(row) + "\n" for row in rows).replace("item, it", '"item, it"')
    )
    outcome = read_all(tmp_path / "a.csv", item='"item, it"')
    assert found(outcome) == [("u", "a;b,c|d", at("2024-01-01", "UTC"))]
    assert faults(outcome) == [("line 3", "user must be present and not empty")]


def test_a_header_that_can_be_read_in_two_ways_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("item,user,a;item;user;b,c\n")
    with pytest.raises(InputFileError, match=r"--delimiter must be given, for its first line .* in several ways"):
        ReadEvents(str(tmp_path / "a.csv"), readings(time_zone=None, user="", time="item", item="user"))


def known_encodings():
    """Return the encodings that Python knows and that files may have."""
    for name in sorted(set(aliases.aliases.values())):
        with suppress(ValueError):
            yield formats.encoding_of(name)


def test_no_bytes_of_a_record_change_how_the_next_one_is_read():
    rng, after = np.random.default_rng(7), "\nnext,1\n"
    checked = set(known_encodings())
    assert {"utf-8", "utf-16", "gb18030", "shift_jis", "cp037"} <= checked
    for encoding in sorted(checked):
        unit = len("aa".encode(encoding)) - len("a".encode(encoding))
        follows = f"{encoding}-le" if encoding in ("utf-16", "utf-32") else encoding  # one order mark is enough
        before, end, line_feed = "first\n".encode(encoding), after.encode(follows), "\n".encode(follows)
        records = [rng.bytes(unit * size) for size in (1, 2, 3, 4) for _ in range(200)]
        for record in [*records, *(shift * unit for shift in (b"\x1b$B", b"\x1b(I", b"\x1b$", b"\x0e", b"~{", b"~"))]:
            if line_feed not in record:
                text = b"".join(formats.as_utf_8(iter([before + record + end]), encoding))
                assert text.endswith(after.encode()), encoding


ISO = ["2024-07-01T12:00:00Z", "2024-07-01T12:00:00", "2024-07-01", "2024-07-01T12:00+02:00"]


@pytest.mark.parametrize("texts", [ISO, ISO[1:3], [5, *ISO]], ids=["mixed", "local", "several kinds"])
def test_a_local_time_without_a_zone_is_refused_and_never_utc(texts):
    columns = {"user": ["u"] * len(texts), "item": ["i"] * len(texts), "time": texts}
    (batch,), refusals = normalised(columns, FieldMapping())
    local = [row for row, text in enumerate(texts) if text in ISO[1:3]]
    assert [int(one.position) for one in refusals if one.code == "time_zone"] == local
    assert {one.reason for one in refusals if int(one.position) in local} == {
        "time must say how far it is from UTC, such as Z or +01:00, or a time zone must be given"
    }
    (batch,), refusals = normalised(columns, FieldMapping(time_zone="Europe/Berlin"))
    assert not [one for one in refusals if int(one.position) in local]
    times = batch["time"].to_pylist()
    assert at("2024-07-01T12:00") in times and at("2024-07-01T00:00") in times


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_local_timestamps_of_files_need_a_zone_too(unit, tmp_path, read_all):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    local = int((datetime(2024, 7, 1, 12) - datetime(1970, 1, 1)).total_seconds()) * per_second
    times = pa.array([local, None], pa.timestamp(unit))
    pq.write_table(pa.table({"user": ["u", "v"], "item": ["i", "i"], "time": times}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"--time-zone must be given, such as .*: field `time` of .* has local times"):
        ReadEvents(str(tmp_path / "a.parquet"), readings(time_zone=None))
    outcome = read_all(tmp_path / "a.parquet", time_zone="Europe/Berlin")
    assert [row["time"] for row in outcome.rows] == [at("2024-07-01T12:00")]


NUMBERS = ["12,50", "1.234,5", "1.234", "12.50", "1 234,00", "1'234.567,8", "x", "-,5", "12,", "1,2,3", "1e3",
           "-1.234.567"]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.binary(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()), None]
)
def test_numbers_are_read_in_one_style_alone(kind):
    def read(decimal):
        values = NUMBERS if kind is None else pa.array(NUMBERS).cast(kind)
        values = [*NUMBERS[:-1], 5] if kind is None else values
        columns = {"user": ["u"] * 12, "item": ["i"] * 12, "time": [1] * 12, "value": values}
        fields = FieldMapping(value="value", time_unit="s", decimal=decimal)
        (batch,), refusals = normalised(columns, fields)
        assert {one.code for one in refusals} == {"value_type"}
        return batch["value"].to_pylist(), [int(one.position) for one in refusals], {one.reason for one in refusals}

    last = 5.0 if kind is None else -1234567.0
    assert read(",") == ([12.5, 1234.5, 1234.0, 1234.0, -0.5, 12.0, 1000.0, last], [3, 5, 6, 9],
                         {"value must be a number, with a comma before decimals"})  # fmt: skip
    assert read(None)[0][:3] == [1.234, 12.5, 1000.0] and read(".")[0][:3] == [1.234, 12.5, 1000.0]
    columns = {"user": ["u"], "item": ["i"], "time": [1], "v": ["1,234.50"]}
    (batch,), _ = normalised(columns, FieldMapping(value="v", time_unit="s", decimal="."))
    assert batch["value"].to_pylist() == [1234.5]


def test_values_are_rounded_to_public_units_and_may_be_missing(tmp_path, read_all):
    (tmp_path / "a.csv").write_text('user;item;time;value\nu;i;1;"12,50"\nu;i;1;\nu;i;1;NA\nu;i;1;0,1\nu;i;1;2,005\n')
    options = {"value": "value", "time_unit": "s", "decimal": ",", "null": ("NA",)}
    cents = read_all(tmp_path / "a.csv", **options, whole=True, value_unit=0.01)
    assert [row["value"] for row in cents.rows] == [1250.0, 0.0, 0.0, 10.0, 200.0] and not cents.letters
    needed = read_all(tmp_path / "a.csv", **options)
    assert [row["value"] for row in needed.rows] == [12.5, 0.1, 2.005]
    assert faults(needed) == [(f"line {line}", "value must be present and not empty") for line in (3, 4)]


def test_a_folder_of_files_compressed_or_not(tmp_path, read_all):
    folder = tmp_path / "events"
    (folder / "older").mkdir(parents=True)
    text = "user;item;time\nu{0};i;2024-01-01\n"
    (folder / "a.csv").write_text(text.format(1))
    (folder / "b.csv.gz").write_bytes(gzip.compress(text.format(2).encode()))
    (folder / "c.csv.zst").write_bytes(zstandard.compress(b"\xef\xbb\xbf" + text.format(3).encode()))
    (folder / "_SUCCESS").touch()
    (folder / "older" / "d.csv").write_text(text.format(4))
    assert [row["user"] for row in read_all(folder).rows] == ["u1", "u2", "u3"]
    (folder / "readme.txt").touch()
    with pytest.raises(InputFileError, match=r"--input must end in .*, got .*readme\.txt"):
        match_files(str(folder))
    with pytest.raises(InputFileError, match="--input must have at least one file"):
        match_files(str(tmp_path))


SKIPPED = "time must be one that clocks show: in Europe/Berlin they leave out that hour when summer time begins"
FAULTS = {
    "1042;Gartenstühle;24.12.2025 18:30;12,50": None,
    "1043;Bücher;2025-12-24 18:30;12,50": FORM,
    "1044;Bücher;12/24/2025 18:30;12,50": FORM,
    "1045;Bücher;31.02.2026 10:00;12,50": FORM,
    "1046;Bücher;29.03.2026 02:30;12,50": SKIPPED,
    "1047;Bücher;25.10.2026 02:30;12,50": None,
    "1048;Bücher;24.12.2025 18:30;12.50": "value must be a number, with a comma before decimals",
    "1049;Bücher;1.7.2025 9:05;1.234,50": None,
    "Kunde;Artikel;Gekauft am;Betrag": FORM,
    "1050;Bücher;24.12.2025 18:30": "line must be one CSV record with 4 fields",
    "1052;Bücher;24.12.2025 25:00;1": FORM,
    "1053;Bücher;31.12.1969 23:00;1": "time must be between 1970-01-01 and 2200-01-01",
    "1054;Bücher;;1": "time must be present and not empty",
}


@pytest.mark.parametrize(
    ("encoding", "other"),
    [("utf-8", "windows-1252"), ("utf-8", "utf-16-le"), ("utf-16", "utf-8"), ("windows-1252", "utf-8")],
)
def test_each_fault_of_a_messy_file_is_one_line_with_its_number(encoding, other, tmp_path, read_all):
    lines = ["Kunde;Artikel;Gekauft am;Betrag", *FAULTS]
    good = ("\n".join(lines) + "\n").encode(encoding)
    (tmp_path / "a.csv").write_bytes(good)
    fields = {"user": "Kunde", "item": "Artikel", "time": "Gekauft am", "value": "Betrag", "decimal": ",", **BERLIN}
    outcome = read_all(tmp_path / "a.csv", **fields, encoding=encoding)
    told = [(f"line {number}", rule) for number, rule in enumerate(FAULTS.values(), 2) if rule]
    assert sorted(faults(outcome), key=lambda each: int(each[0][5:])) == told
    assert [(row["user"], row["value"]) for row in outcome.rows] == [("1042", 12.5), ("1047", 12.5), ("1049", 1234.5)]
    times = [at("2025-12-24 18:30"), at("2026-10-25T00:30", "UTC"), at("2025-07-01 09:05")]
    assert [row["time"] for row in outcome.rows] == times
    appended = "1051;Möbel;24.12.2025 18:30;9,99\n".encode(other)
    if encoding == "utf-16":
        appended = "1051;Möbel;24.12.2025 18:30;9,99 \n".encode(other)  # an even number of bytes
    (tmp_path / "a.csv").write_bytes(good + appended)
    mixed = read_all(tmp_path / "a.csv", **fields, encoding=encoding)
    if encoding != "windows-1252":  # in which any bytes are letters
        assert mixed.rows == outcome.rows and len(mixed.letters) > len(outcome.letters)
