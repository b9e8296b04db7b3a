"""A topic on a real broker: windows come out while the stream goes on, idle partitions hold nothing back."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_watch_command import PRIVSTREAM, options, windows

pytest.importorskip("confluent_kafka")
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from privstream.pipelines import kafka
from raw_rows import readings

WINDOW, LATENESS = 2, 4
SECONDS = 120
MICROS = 1_000_000
PARTITIONS = 3  # one of them gets nothing


def on_broker(test):
    """Let a test run where those of the same broker do."""
    return pytest.mark.slow(pytest.mark.xdist_group("destinations")(test))


def topic(broker: str, name: str) -> str:
    client = AdminClient({"bootstrap.servers": broker})
    (made,) = client.create_topics([NewTopic(name, PARTITIONS, 1)]).values()
    made.result()
    return f"kafka://{broker}/{name}"


BEGIN = int(time.time()) // 60 * 60
SPAN = [f"--start={BEGIN}", f"--end={BEGIN + 3600}"]


def command(source: str | Path, output: Path, key: Path) -> list[str]:
    privacy = [
        "--run_id=same",
        "--ledger=none",
        f"--window={WINDOW}",
        f"--allowed_lateness={LATENESS}",
        "--epsilon=4",
        "--delta=1e-6",
        "--max_hits=4",
        "--method=clock",
    ]
    where = [f"--input={source}", f"--output={output}", f"--key={key}", "--time_unit=s", *SPAN]
    return [*PRIVSTREAM, "heavy-hitters", *where, *privacy]


@on_broker
@pytest.mark.prism
def test_windows_come_out_while_records_come_and_equal_a_bounded_run(broker, tmp_path):
    """On Flink a monitor of a topic fills tables and topics: see test_monitor_runners.py."""
    chosen = options("prism")
    name = "events"
    source = topic(broker, name)
    rows, letters, key = tmp_path / "rows", tmp_path / "letters", tmp_path / "noise.key"
    rows.mkdir()
    letters.mkdir()
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    process = subprocess.Popen(
        [*command(source, rows, key), f"--dead_letter={letters}", "--watch=0.3", *chosen], start_new_session=True
    )
    sent, producer, begin = [], Producer({"bootstrap.servers": broker}), time.time() // WINDOW * WINDOW
    complete = set()
    try:
        for round_ in range(SECONDS * 2):
            now = time.time()
            for user in range(400):
                event = {"user": f"{round_}-{user}", "item": "ab"[user % 2], "time": now}
                sent.append(event)
                producer.produce(name, json.dumps(event).encode(), partition=user % 2)
            if round_ == 0:
                producer.produce(name, b'{"user": "poison", "item": ', partition=0)
            producer.flush()
            assert process.poll() is None
            complete = {start for start in windows(rows) if start > begin}
            if len(complete) >= 2:
                break
            time.sleep(0.5)
        deadline = time.monotonic() + SECONDS
        while max(windows(rows)) < now // WINDOW * WINDOW and time.monotonic() < deadline:
            time.sleep(0.2)  # nothing comes any more, and yet the last window closes
        while not list(letters.glob("*.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(complete) >= 2
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(event) + "\n" for event in sent))
    subprocess.run([*command(events, tmp_path / "expected.jsonl", key), "--runner=FnApiRunner"], check=True)
    expected = [json.loads(line) for line in (tmp_path / "expected.jsonl").read_text().splitlines()]
    found = [json.loads(line) for file in sorted(rows.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert found == expected
    (letter,) = [json.loads(line) for file in letters.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert letter["reason"] == "record must be one JSON object"
    assert letter["source"].endswith(f"/{name} partition 0")


class Counted:
    def __init__(self):
        self.total = 0

    def inc(self, number=1):
        self.total += number


def asking(broker: str, name: str) -> kafka.AskKafka:
    source = kafka.AskKafka(broker, name, {}, seconds=0.1)
    source.lost = Counted()
    return source


def ask(source: kafka.AskKafka, position: bytes | None, watermark: int = 0):
    answer = source.poll(b"0", position, watermark)
    found = [
        (offset, value, second) for records, second in answer.found for offset, value in zip(*records[1:], strict=True)
    ]
    return answer._replace(found=found)


def send(broker: str, name: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for value in values:
        producer.produce(name, value, partition=0)
    producer.flush()


@on_broker
def test_a_replay_gives_the_same_records_at_the_same_seconds(broker):
    topic(broker, "replayed")
    source = asking(broker, "replayed")
    start = ask(source, None)
    found, position = list(start.found), start.position
    for number in range(3):
        send(broker, "replayed", [b"%d-%d" % (number, each) for each in range(5)])
        time.sleep(0.6)
        answer = ask(source, position)
        found += answer.found
        position = answer.position
    assert [offset for offset, _, _ in found] == list(range(15))
    assert len({second for _, _, second in found}) > 1
    for consumer in (source, asking(broker, "replayed")):  # one that has to go back, and one on another worker
        again = ask(consumer, start.position)
        assert again.found == found
        assert again.watermark >= max(second for _, _, second in found)
        assert ask(consumer, again.position).found == []


@on_broker
def test_an_idle_partition_goes_with_the_clock(broker):
    topic(broker, "idle")
    source = asking(broker, "idle")
    first = ask(source, None)
    time.sleep(1)
    second = ask(source, first.position)
    assert second.watermark - first.watermark > 0.9 * MICROS
    assert abs(second.watermark + kafka.MARGIN - time.time() * MICROS) < 5 * MICROS


@on_broker
def test_records_that_are_gone_are_counted_and_passed_over(broker):
    topic(broker, "short")
    send(broker, "short", [b"%d" % number for number in range(10)])
    start = ask(asking(broker, "short"), None)
    assert len(start.found) == 10
    send(broker, "short", [b"%d" % number for number in range(10, 20)])
    client = AdminClient({"bootstrap.servers": broker})
    (deleted,) = client.delete_records([TopicPartition("short", 0, 14)]).values()
    deleted.result()
    source = asking(broker, "short")
    answer = ask(source, start.position)
    assert [value for _, value, _ in answer.found] == [b"%d" % number for number in range(14, 20)]
    assert source.lost.total == 4


def test_without_a_broker_time_stands_still(monkeypatch):
    monkeypatch.setattr(kafka, "LAUNCH_SECONDS", 0.3)
    source = asking("127.0.0.1:9", "none")
    answer = ask(source, None, watermark=5)
    assert (answer.found, answer.watermark) == ([], 5)
    assert ask(source, answer.position, watermark=6).watermark == 6


@on_broker
def test_a_topic_that_its_producers_stamp_is_refused_and_their_stamps_move_nothing(broker):
    stamped = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**62)}
    client = AdminClient({"bootstrap.servers": broker})
    (made,) = client.create_topics([NewTopic("stamped", 1, 1, config=stamped)]).values()
    made.result()
    with pytest.raises(ValueError, match=r"stamped has message\.timestamp\.type=CreateTime\. Run: kafka-configs"):
        kafka.ReadKafka(f"kafka://{broker}/stamped", readings(time_zone=None))
    producer = Producer({"bootstrap.servers": broker})
    producer.produce("stamped", b"1", timestamp=4_102_444_800_000)
    producer.flush()
    source, deadline = asking(broker, "stamped"), time.monotonic() + SECONDS
    while not (answer := ask(source, None)).found and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [(value, second) for _, value, second in answer.found] == [(b"1", 0)]
    assert answer.watermark < (time.time() + 1) * MICROS
