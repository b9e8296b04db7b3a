"""The test of the test: faults that are planted into the readers and commands are found by the fuzzer, and soon."""

import csv
import io
import json

import fuzz_reading
import pytest
from fuzz_commands import Ran
from fuzz_manners import check_manners
from fuzz_meaning import Event, Rules, of_csv_record, of_json_line, of_values
from fuzz_properties import check_one_record_decides_for_itself
from fuzz_reading import Outcome
from fuzz_seeds import chance_of
from fuzz_text_files import COMPRESSIONS, text_case

CASES = 300
"""No more than `test_fuzz_files.py` has."""


def lines_of(path):
    """Return the lines of a plain file; files that are compressed are none of this test's matter."""
    return path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")


def json_reader(path, rules, plant):
    """Read JSON lines with a fault; without one, as the rules say."""
    found = Outcome()
    first = None
    for line in lines_of(path):
        event = of_json_line(line, rules)
        if not line.strip():
            continue
        if plant == "schema of the first record":
            keys = json.loads(line).keys() if event else set()
            first = keys if first is None else first
            event = event if keys <= first else None
        if plant == "a bad record ends the run" and event is None:
            return Outcome(error="line must be one JSON object")
        if plant == "quotes a record" and event is None and rules.user.encode() in line:
            return Outcome(error=f"cannot read {line.decode('utf-8', 'replace')}")
        if event is not None:
            found.events[event] += 1
        elif plant != "in silence":
            found.letters.append(line)
    return found


def csv_reader(path, rules, plant):
    """Read CSV with a fault: lines for records, or a splitter that trusts any quote."""
    found = Outcome()
    text = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    header = next(csv.reader(io.StringIO(text.decode("utf-8", "surrogateescape"), newline="")))
    body = text.split(b"\n", 1)[1]
    if plant == "splits inside quotes":
        records = [line for line in body.split(b"\n") if line.strip()]
    else:
        records, open_ = [], b""
        for line in body.split(b"\n"):
            open_ = open_ + b"\n" + line if open_ else line
            if open_.count(b'"') % 2 == 0:
                records.append(open_)
                open_ = b""
        records = [record for record in [*records, open_] if record.strip()]
    for record in records:
        event = of_csv_record(record, header, rules)
        if event is not None:
            found.events[event] += 1
        else:
            found.letters.append(record)
    return found


def found_in(monkeypatch, format, reader, plant, folder):
    """Return the number of the first case in which the fuzzer finds a fault, or None."""
    monkeypatch.setattr("fuzz_properties.read", lambda path, rules: reader(path, rules, plant))
    monkeypatch.setattr("fuzz_text_files.COMPRESSIONS", {"": COMPRESSIONS[""]})
    for number in range(CASES):
        case = text_case(chance_of(f"planted {format}", number, 0), folder, format)
        try:
            check_one_record_decides_for_itself(case)
        except AssertionError:
            return number
    return None


@pytest.mark.parametrize(
    "plant", ["schema of the first record", "a bad record ends the run", "quotes a record", "in silence"]
)
def test_faults_of_a_reader_of_json_lines_are_found(plant, monkeypatch, tmp_path):
    assert found_in(monkeypatch, "jsonl", json_reader, plant, tmp_path) is not None


@pytest.mark.parametrize("plant", ["splits inside quotes", "trusts any quote"])
def test_faults_of_a_reader_of_csv_are_found(plant, monkeypatch, tmp_path):
    assert found_in(monkeypatch, "csv", csv_reader, plant, tmp_path) is not None


@pytest.mark.slow
def test_a_reader_by_the_rules_passes(monkeypatch, tmp_path):
    assert found_in(monkeypatch, "jsonl", json_reader, "", tmp_path) is None


@pytest.mark.parametrize(
    "ran",
    [
        (None, "ValueError"),
        (1, ""),
        (1, "privstream x: error: one\nprivstream x: error: two"),
        (1, "Traceback (most recent call last):\nprivstream x: error: one"),
        (0, "kanarie 5 could not be read"),
        (2, "privstream x: error: no field \x1b[2J"),
        (2, "privstream x: error: no field \u202e"),
        (5, "privstream x: error: no"),
    ],
    ids=str,
)
def test_bad_manners_are_found(ran, tmp_path):
    status, said = ran
    with pytest.raises(AssertionError):
        check_manners(Ran(["x"], status, "", said, tmp_path))


def test_half_written_files_are_found(tmp_path):
    call = ["x", "--output", str(tmp_path / "rows.jsonl")]
    check_manners(Ran(call, 2, "", "privstream x: error: no", tmp_path))
    (tmp_path / "rows.jsonl.guarantee.json").write_text("{}")
    with pytest.raises(AssertionError, match="without rows"):
        check_manners(Ran(call, 2, "", "privstream x: error: no", tmp_path))
    (tmp_path / ".rows.jsonl.0.partial").write_text("")
    with pytest.raises(AssertionError, match="half-written"):
        check_manners(Ran(call, 2, "", "privstream x: error: no", tmp_path))


def test_the_meaning_of_records():
    rules = Rules(time_unit="s")
    event = Event("5", "é", 1_704_067_200_250_000)
    assert of_values({"user": 5, "item": "é", "time": 1704067200.25}, rules) == event
    assert of_json_line('{"user":5,"item":"é","time":"2024-01-01T02:00:00.25+02:00"}'.encode(), Rules()) == event
    assert of_csv_record(b'1704067200.25,"\xc3\xa9",5', ["time", "item", "user"], rules) == event
    assert of_values({"user": True, "item": "é", "time": 5}, rules) is None
    assert of_values({"user": "a", "item": "b", "time": 5}, Rules()) is None
    assert (ValueError, TypeError) == fuzz_reading.REFUSALS
