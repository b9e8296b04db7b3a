"""Dead letters of a run without an end are in few files: all of them, whatever their times are."""

import json
import time
from itertools import chain
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from privstream.pipelines.sinks.window_files import WriteDeadLetterFiles, _WriteLetters
from privstream.transforms.events.dead_letters import DeadLetter
from runner_harness import run


def letter(number: int) -> DeadLetter:
    return DeadLetter("late", "source", f"line {number:04}", "record")


def positions(file) -> list[int]:
    return [int(json.loads(line)["position"].removeprefix("line ")) for line in file.read_text().splitlines()]


def late(element) -> TimestampedValue:
    """Give a letter the time of an event that came much too late."""
    return TimestampedValue(letter(int(element * 100) % 10_000), MIN_TIMESTAMP)


def test_a_file_is_complete_when_it_is_large(tmp_path):
    letters = [letter(number) for number in range(100)]
    size = len(json.dumps(letters[0]._asdict())) + 1
    run("fn_api", lambda p: p | beam.Create(letters) | WriteDeadLetterFiles(str(tmp_path), largest=30 * size))
    files = sorted(tmp_path.iterdir())
    found = [positions(file) for file in files]
    assert sorted(map(len, found)) == [10, 30, 30, 30]
    assert sorted(chain.from_iterable(found)) == list(range(100))
    assert all(each == sorted(each) for each in found)


class Cell(list):
    """A bag, a value or a timer of one key."""

    add = write = set = list.append

    def read(self):
        return (self or [None])[-1]


class Bag(Cell):
    read = list.copy


def test_a_minute_makes_one_file_and_the_next_letter_begins_another(tmp_path):
    writer = _WriteLetters(str(tmp_path), seconds=60, largest=1 << 20)
    lines, size, minute, end = Bag(), Cell(), Cell(), Cell()
    for number in range(3):
        assert not list(writer.process((b"", b"%d\n" % number), lines, size, minute, end))
    assert len(minute) == len(end) == 1
    (first,) = writer.on_minute(lines, size)
    assert Path(first).read_text() == "0\n1\n2\n"
    assert not list(writer.on_minute(lines, size))
    assert not list(writer.process((b"", b"3\n"), lines, size, minute, end))
    assert len(minute) == 2
    (second,) = writer.on_end(lines, size, minute)
    assert Path(second).read_text() == "3\n"


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
