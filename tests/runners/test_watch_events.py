"""A watched folder with bad files in it: the run goes on to its end, and dead letters are in few files."""

import json
import os
import time
from itertools import chain
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from privstream.pipelines.sinks.writers import WriteDeadLetterFiles
from privstream.pipelines.sources.files import EventFile
from privstream.pipelines.sources.readers import WatchEvents, read_watched
from privstream.transforms.reading.fields import DeadLetter
from raw_rows import readings
from runner_harness import run

FIELDS = readings(time_unit="s")


def lines(*users: str) -> str:
    return "".join(json.dumps({"user": user, "item": "a", "time": 1.0}) + "\n" for user in users)


def read(folder: Path, **options):
    """Run to the end that `_END` says; return users and dead letters."""
    (folder / "_END").touch()

    def build(pipeline):
        found = pipeline | WatchEvents(str(folder), FIELDS, seconds=0.05, **options)
        users = found.events | beam.FlatMap(lambda batch: batch["user"].to_pylist())
        return {"users": users, "letters": found.dead_letters | beam.Map(tuple)}

    results = run("fn_api", build, "--streaming")
    return sorted(results.elements("users")), results.elements("letters"), results.counters


@pytest.mark.parametrize("watermark", ["arrival", "marks"])
def test_every_file_is_read_once_and_bad_ones_are_dead_letters(tmp_path, watermark):
    (tmp_path / "a.jsonl").write_text(lines("1", "2") + '{"user": "3"\n')
    (tmp_path / "b.csv").write_text("user,item,time\n4,a,1\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "fields.csv").write_text("who,item,time\n5,a,1\n")
    (tmp_path / "empty.parquet").touch()
    (tmp_path / ".hidden.csv").write_text("user,item,time\n6,a,1\n")
    (tmp_path / "_other.csv").write_text("user,item,time\n7,a,1\n")
    users, letters, counters = read(tmp_path, watermark=watermark)
    assert users == ["1", "2", "4"]
    assert sorted(Path(letter[1]).name for letter in letters) == ["a.jsonl", "broken.parquet", "fields.csv"]
    reasons = {Path(letter[1]).name: letter[0] for letter in letters}
    assert reasons["a.jsonl"] == "line must be one JSON object"
    assert "must name a field" in reasons["fields.csv"]
    assert counters["privstream:files_taken"] == 5
    assert counters["privstream:files_unreadable"] == 2


def test_a_file_that_is_gone_or_has_grown_is_a_dead_letter(tmp_path):
    file = tmp_path / "a.jsonl"
    gone = EventFile(str(file), 10, "jsonl")
    (letter,) = read_watched(gone, FIELDS)
    assert letter.reason == f"{file} must stay until it has been read"
    file.write_text(lines("1"))
    found = gone._replace(size=file.stat().st_size)
    assert [each.rows for each in read_watched(found, FIELDS)] == [1]
    file.write_text(lines("1", "2"))
    (letter,) = read_watched(found, FIELDS)
    assert letter.reason == f"{file} must not change while a run reads it"


def not_utf_8(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/l\xff.jsonl")).write_text(lines("2"))


def hostile_name(folder: Path) -> None:
    (folder / "c\x1b[31m\n\u202e.jsonl").write_text("no object\n")


HOSTILE = {
    "folder": (lambda folder: (folder / "b.jsonl").mkdir(), []),
    "folder that is a mark": (lambda folder: (folder / "_UNTIL_20300101T120000Z").mkdir(), []),
    "dangling link": (lambda folder: (folder / "b.jsonl").symlink_to("nowhere"), []),
    "link to itself": (lambda folder: (folder / "b.jsonl").symlink_to(folder / "b.jsonl"), []),
    "pipe": (lambda folder: os.mkfifo(folder / "b.jsonl"), []),
    "device": (lambda folder: (folder / "b.jsonl").symlink_to("/dev/zero"), []),
    "mark of no time": (lambda folder: (folder / "_UNTIL_20301399T120000Z").touch(), []),
    "name that is no UTF-8": (not_utf_8, ["its name must be UTF-8"]),
    "name of control characters": (hostile_name, ["line must be one JSON object"]),
}


@pytest.mark.parametrize(("make", "reasons"), HOSTILE.values(), ids=HOSTILE)
def test_whatever_else_is_in_the_folder_the_run_goes_on(make, reasons, tmp_path):
    (tmp_path / "a.jsonl").write_text(lines("1"))
    make(tmp_path)
    users, letters, _ = read(tmp_path)
    assert users == ["1"]
    assert [letter[0].rpartition(": ")[2] for letter in letters] == reasons


def letter(number: int) -> DeadLetter:
    return DeadLetter("late", "source", f"line {number:04}", "record")


def positions(file) -> list[int]:
    return [int(json.loads(line)["position"].removeprefix("line ")) for line in file.read_text().splitlines()]


def late(element) -> TimestampedValue:
    """Give a letter the time of an event that came much too late."""
    return TimestampedValue(letter(int(element * 100) % 10_000), MIN_TIMESTAMP)


def test_a_file_is_complete_when_it_is_large(tmp_path):
    letters = [letter(number) for number in range(100)]
    run("fn_api", lambda p: p | beam.Create(letters) | WriteDeadLetterFiles(str(tmp_path), most=30))
    files = sorted(tmp_path.iterdir())
    found = [positions(file) for file in files]
    assert sorted(map(len, found)) == [10, 30, 30, 30]
    assert sorted(chain.from_iterable(found)) == list(range(100))
    assert all(each == sorted(each) for each in found)


@pytest.mark.prism
def test_late_letters_are_in_few_files(tmp_path):
    """The watermark has passed them, and goes on: neither makes a file."""
    began = time.time()
    run(
        "prism",
        lambda p: (
            p
            | PeriodicImpulse(began, began + 4, 0.05)
            | beam.Map(late)
            | WriteDeadLetterFiles(str(tmp_path), seconds=1.5)
        ),
    )
    found = [positions(file) for file in tmp_path.iterdir()]
    assert sum(map(len, found)) == 80
    assert len(found) <= 4
