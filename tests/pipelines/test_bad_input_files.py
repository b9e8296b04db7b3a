"""Input that is no file of events, or a bad one, and a disk that is full: one clear line, or dead letters."""

import json
import os
from datetime import datetime

import fastavro
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.pipelines.cli import main
from privstream.pipelines.sources.files import match_files
from privstream.pipelines.sources.formats import InputFileError
from privstream.pipelines.sources.readers import ReadEvents
from raw_rows import readings

GOOD = {"user": "u", "item": "i", "time": 1}
SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "item", "type": "string"},
        {"name": "time", "type": "long"},
    ],
}


def launch(path, **fields):
    return ReadEvents(str(path), readings(**fields))


@pytest.mark.parametrize(
    ("format", "content"),
    [
        *[(format, content) for format in ("jsonl", "csv") for content in (b"", b"\n\n", b"\xef\xbb\xbf")],
        ("csv", b"user,item,time\n"),
    ],
)
def test_text_without_events_is_no_error(format, content, tmp_path, read):
    (tmp_path / f"a.{format}").write_bytes(content)
    assert read(tmp_path / f"a.{format}") == ([], [], {})


@pytest.mark.parametrize(
    "content",
    [b"", b"no such thing" * 20, b"Obj\x01", b"PAR1", b"Obj\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"PAR1" * 50],
)
@pytest.mark.parametrize("format", ["avro", "parquet"])
def test_other_files_are_named_at_launch(format, content, tmp_path):
    (tmp_path / f"a.{format}").write_bytes(content)
    with pytest.raises(InputFileError, match=rf"a\.{format} is not an? (Avro|Parquet) file, or"):
        launch(tmp_path / f"a.{format}")


def test_a_damaged_page_ends_the_command_with_one_line_and_nothing_half_written(tmp_path, capfd):
    events = [{"user": f"u{number}", "item": f"secret {number}", "time": number} for number in range(1000)]
    pq.write_table(pa.Table.from_pylist(events), tmp_path / "a.parquet", use_dictionary=False, row_group_size=500)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    place = pq.read_metadata(tmp_path / "a.parquet").row_group(1).column(1).data_page_offset
    content[place : place + 500] = b"\xff" * 500
    (tmp_path / "a.parquet").write_bytes(bytes(content))
    where = [
        f"--input={tmp_path / 'a.parquet'}",
        f"--output={tmp_path / 'rows.jsonl'}",
        "--time_unit=s",
        "--window=3600",
    ]
    privacy = ["--epsilon=1", "--delta=1e-6", "--method=clock", *SPAN]
    assert main(["heavy-hitters", *where, *privacy, f"--dead_letter={tmp_path / 'letters.jsonl'}"]) == 1
    errors = [line for line in capfd.readouterr().err.splitlines() if "error" in line]
    assert len(errors) == 1
    assert f"{tmp_path}/a.parquet is not a Parquet file, or is damaged" in errors[0]
    assert "secret" not in errors[0]
    assert [path.name for path in tmp_path.iterdir() if path.name != "a.parquet"] == []


def test_avro_text_that_is_not_utf_8_costs_only_its_record(tmp_path, read):
    with (tmp_path / "a.avro").open("wb") as stream:
        fastavro.writer(stream, SCHEMA, [GOOD, GOOD | {"item": "QQQQ"}, GOOD])
    (tmp_path / "a.avro").write_bytes((tmp_path / "a.avro").read_bytes().replace(b"QQQQ", b"Q\xff\xfeQ"))
    outcome = read(tmp_path / "a.avro", time_unit="s")
    assert len(outcome.rows) == 2
    (letter,) = outcome.letters
    assert letter.reason == "item must be valid text in its encoding"
    assert letter.position == "record 2"
    assert json.loads(letter.record)["user"] == "u"


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        ("person;item;time", "no `user` there, only: item, person, time"),
        ("who\twhat\twhen", "got what, when, who$"),
        ("ana;tea;2024", "got 3 fields of other names$"),
        ("a,b,c", "got a, b, c$"),
        ("user,time", "no `item` there"),
    ],
)
def test_every_file_is_looked_at_before_a_run_is_paid_for(header, rule, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("user,item,time\nu,i,1\n")
    (tmp_path / "c.csv").write_text(f"{header}\nu,i,1\n")
    with pytest.raises(ValueError, match=rf"c\.csv.*{rule}"):
        launch(tmp_path / "*.csv", time_unit="s")


@pytest.mark.parametrize("time", ["2024-01-01", "1704067200", "Jan 1", "", "\u0661", "x" * 50])
def test_a_csv_without_header_is_not_quoted(time, tmp_path):
    number = "" if time else "7"
    (tmp_path / "a.csv").write_text(f"secret-user{number},secret-item,{time}\n", encoding="utf-8")
    book = openpyxl.Workbook()
    book.active.append(["secret-user", "secret-item", datetime(2024, 1, 1)])
    book.save(tmp_path / "a.xlsx")
    for name in ("a.csv", "a.xlsx"):
        rule = f"the first line of .*{name} must be a header with the fields user, item, time"
        with pytest.raises(ValueError, match=rule) as error:
            launch(tmp_path / name)
        assert "secret" not in str(error.value)
    (tmp_path / "a.csv").write_text("secret-user,secret-item\n")
    with pytest.raises(ValueError, match="got 2 fields of other names"):
        launch(tmp_path / "a.csv", time="")


BAD_LINES = {
    "null": "line must be one JSON object",
    "5": "line must be one JSON object",
    "[1]": "line must be one JSON object",
    '{"user":"u"': "line must be one JSON object",
    '{"user":"u"}}': "line must be one JSON object",
    '{"user":"u"},{"user":"v"}': "line must be one JSON object",
    '{"user":"u"} null': "line must be one JSON object",
    "[" * 100_000: "line must be one JSON object",
    "{}": "user must be present and not empty",
    '{"user":"u","item":"","time":1}': "item must be present and not empty",
    '{"user":"u","item":"i"}': "time must be present and not empty",
    '{"user":"u","item":"i","time":NaN}': "time must be finite",
    '{"user":"u","item":"i","time":-1}': "time must be between 1970-01-01 and 2200-01-01",
    '{"user":"u","item":"i","time":7258118400}': "time must be between 1970-01-01 and 2200-01-01",
    '{"user":"u","item":"i","time":"soon"}': "time must be a number or ISO 8601 text with dashes "
    "and colons, such as 2030-01-31T12:00:00Z",
    '{"user":{"u":1},"item":"i","time":1}': "user must be text or an integer, got values of another kind",
    '{"user":"u","item":1.5,"time":1}': "item must be text or an integer, got double",
    '{"user":"u","item":["i"],"time":1}': "item must be text or an integer, got values of another kind",
    '{"user":"\\ud800","item":"i","time":1}': "line must be one JSON object",
}


def test_a_bad_json_line_costs_only_itself(tmp_path, read):
    good, bad = json.dumps(GOOD), [*BAD_LINES, json.dumps(GOOD | {"item": "x" * (1 << 21)})]
    (tmp_path / "a.jsonl").write_text("".join(f"{good}\n\n{line}\r\n" for line in bad))
    outcome = read(tmp_path / "a.jsonl", time_unit="s")
    assert len(outcome.rows) == outcome.counters["events_read"] == len(bad)
    assert outcome.counters["events_malformed"] == len(bad)
    letters = {int(letter.position.removeprefix("line ")): letter for letter in outcome.letters}
    rules = [*BAD_LINES.values(), "item must be at most 16,384 bytes of UTF-8"]
    assert [letters[3 * row + 3].reason for row in range(len(bad))] == rules
    assert all(letters[3 * row + 3].record.startswith(line[:1000]) for row, line in enumerate(bad))
    assert len(letters[3 * len(bad)].record) == (1 << 12) + 1


NAMED_GOOD = json.dumps({"user": "u", "item": "a", "time": "2024-01-01"}) + "\n"
FORMATS = ("jsonl", "csv", "avro", "parquet")
SPAN = ["--start=2024-01-01", "--end=2024-01-01T01:00Z", "--time_zone=UTC"]
NO_FILE = "it is a folder, a pipe or a device, not a file"


def folder(path):
    path.mkdir()


def device(path):
    path.symlink_to("/dev/zero")


def refused(path):
    """Return why a path is refused at launch."""
    with pytest.raises(InputFileError) as error:
        launch(path)
    return str(error.value)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("make", [folder, os.mkfifo, device])
def test_what_is_no_file_is_named_and_not_waited_for(make, format, tmp_path):
    make(tmp_path / f"a.{format}")
    found = f"cannot read {tmp_path}/a.{format}: {NO_FILE}"
    if make is folder:  # its files are read, of which there are none
        found = f"--input must have at least one file: nothing matches {tmp_path}/a.{format}"
    assert refused(tmp_path / f"a.{format}") == found


@pytest.mark.parametrize("name", [b"l\xff.jsonl", b"l\xff.csv", b"l\xff.parquet"])
def test_a_name_that_is_no_utf_8_is_refused(name, tmp_path):
    with open(os.fsencode(tmp_path) + b"/" + name, "w") as file:
        file.write(NAMED_GOOD)
    said = refused(tmp_path / f"l*{name[2:].decode()}")
    assert said.endswith("its name must be UTF-8") and "\\udcff" in said


def test_a_glob_passes_over_folders_and_names_a_pipe(tmp_path):
    (tmp_path / "a.jsonl").write_text(NAMED_GOOD)
    (tmp_path / "b.jsonl").mkdir()
    assert [file.path for file in match_files(f"{tmp_path}/*.jsonl")] == [f"{tmp_path}/a.jsonl"]
    assert match_files(f"{tmp_path}/**/*.jsonl") == match_files(f"{tmp_path}/*.jsonl")
    os.mkfifo(tmp_path / "c.jsonl")
    with pytest.raises(InputFileError, match=rf"c\.jsonl: {NO_FILE}"):
        match_files(f"{tmp_path}/*.jsonl")
