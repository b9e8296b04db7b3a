"""Records of Kafka without a broker: whatever one of them is, or says of its time, decides about no other."""

import json

import pyarrow as pa
import pytest
from apache_beam.pvalue import TaggedOutput
from raw_rows import readings

pytest.importorskip("confluent_kafka")
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE
from privstream.pipelines import kafka
from privstream.pipelines.kafka import AskKafka, PolledRecords, parse_records
from privstream.pipelines.sources.files import usable

GOOD = b'{"user": "u", "item": "a", "time": 1}'
NOW, FUTURE = 1_700_000_000, 4_102_444_800  # seconds; the second is 2100
MICROS = 1_000_000


class Message:
    """A record as librdkafka gives it."""

    def __init__(self, offset, value=GOOD, kind=TIMESTAMP_LOG_APPEND_TIME, second=NOW):
        self._offset, self._value, self._stamp = offset, value, (kind, int(second * 1000))

    def offset(self):
        return self._offset

    def value(self):
        return self._value

    def timestamp(self):
        return self._stamp

    def error(self):
        return None


class Partition:
    """A consumer of one partition that gives the records there are."""

    def __init__(self, messages, end=None):
        self.messages, self.end, self.stands = messages, len(messages) if end is None else end, 0

    def get_watermark_offsets(self, partition, timeout):
        return 0, self.end

    def assign(self, partitions):
        self.stands = partitions[0].offset

    def consume(self, number, timeout):
        self.stands, found = self.stands + number, self.messages[self.stands : self.stands + number]
        return found


def ask(monkeypatch, messages, end=None, position=None):
    monkeypatch.setattr(kafka, "new_consumer", lambda *_: Partition(messages, end))
    source = AskKafka("broker", "topic", {}, seconds=1)
    return source.poll(b"0", position, 0)


def arrivals(answer):
    return [second // MICROS for records, second in answer.found for _ in records.offsets]


@pytest.mark.parametrize("kind", [TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE])
def test_a_time_that_a_producer_sets_moves_nothing(kind, monkeypatch):
    messages = [
        Message(0),
        Message(1, kind=kind, second=FUTURE),
        Message(2, second=NOW + 5),
        Message(3, kind=kind, second=1),
    ]
    answer = ask(monkeypatch, messages, end=10)
    assert arrivals(answer) == [NOW, NOW, NOW + 5, NOW + 5]
    assert answer.watermark == (NOW + 5) * MICROS


def test_the_stamps_of_the_broker_never_run_backwards(monkeypatch):
    answer = ask(monkeypatch, [Message(0, second=NOW), Message(1, second=NOW - 9), Message(2, second=NOW + 1)], end=10)
    assert arrivals(answer) == [NOW, NOW, NOW + 1]


def parse(*values):
    """Return the users read, and reason by offset of the others."""
    records = PolledRecords("topic", list(range(len(values))), list(values))
    found = list(usable(records, parse_records, readings(time_unit="s")))
    letters = {each.value.position: each.value for each in found if isinstance(each, TaggedOutput)}
    return [user for each in found if isinstance(each, pa.RecordBatch) for user in each["user"].to_pylist()], letters


def test_records_that_are_no_objects_are_dead_letters_and_harm_no_others():
    users, letters = parse(GOOD, b'{"user": "m", "item": [1', GOOD, b"2]}", b"{},{}", b"{},{}", b'{"user": 1}')
    assert users == ["u", "u"]
    assert sorted(letters) == [f"offset {number}" for number in (1, 3, 4, 5, 6)]


HOSTILE = {
    "tombstone": b"",
    "no JSON": b"\x00\xff\xfe",
    "deep": b'{"user":' + b"[" * 500_000,
    "deep and closed": b'{"user":"v","item":"a","time":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "lone surrogate": b'{"user":"\\ud800","item":"a","time":1}',
    "lone surrogate, raw": b'{"user":"\xed\xa0\x80","item":"a","time":1}',
    "long number": b'{"user":' + b"9" * 10_000 + b',"item":"a","time":1}',
    "time of many digits": b'{"user":"v","item":"a","time":1e999}',
    "16 MiB": json.dumps({"user": "v", "item": "x" * (1 << 24), "time": 1}).encode(),
    "a long item": json.dumps({"user": "v", "item": "x" * 100_000, "time": 1}).encode(),
    "two records": GOOD + GOOD,
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_hostile_record_is_one_dead_letter(value, place):
    values = [GOOD, GOOD]
    values.insert(place, value)
    users, letters = parse(*values)
    assert users == ["u", "u"]
    assert list(letters) == [f"offset {place}"]
    assert len(letters[f"offset {place}"].record) < 10_000
