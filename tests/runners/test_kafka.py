"""A topic on a real broker: windows come out while the stream goes on, idle partitions hold nothing back."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_watch_command import PRIVSTREAM, on_streaming_runners, options, windows

pytest.importorskip("confluent_kafka")
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

BROKER = [sys.executable, str(Path(__file__).parents[2] / "deploy" / "kafka" / "broker.py")]
WINDOW, LATENESS = 4, 4
SECONDS = 120
PARTITIONS = 3  # one of them gets nothing


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    run = f"--run={tmp_path_factory.mktemp('broker') / 'run'}"
    started = subprocess.run([*BROKER, "start", run], capture_output=True, text=True, check=False)
    if started.returncode:
        required = os.environ.get("PRIVSTREAM_REQUIRE_RUNNERS")
        (pytest.fail if required else pytest.skip)(f"no broker: {started.stderr}")
    yield started.stdout.strip()
    assert (
        "broker: stopped" in subprocess.run([*BROKER, "stop", run], capture_output=True, text=True, check=True).stdout
    )


def topic(broker: str, name: str) -> str:
    client = AdminClient({"bootstrap.servers": broker})
    (made,) = client.create_topics([NewTopic(name, PARTITIONS, 1)]).values()
    made.result()
    return f"kafka://{broker}/{name}"


def command(source: str | Path, output: Path, key: Path) -> list[str]:
    privacy = ["--window=4", f"--allowed_lateness={LATENESS}", "--epsilon=4", "--delta=1e-6", "--max_hits=4"]
    where = [f"--input={source}", f"--output={output}", f"--noise_key_file={key}", "--time_unit=s", "--horizon=9"]
    return [*PRIVSTREAM, "heavy-hitters", *where, *privacy]


@on_streaming_runners
def test_windows_come_out_while_records_come_and_equal_a_bounded_run(broker, tmp_path, runner):
    chosen = options(runner)
    name = f"events-{runner}"
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
            if len(complete) >= 3:
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
    assert len(complete) >= 3
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(event) + "\n" for event in sent))
    subprocess.run([*command(events, tmp_path / "expected.jsonl", key), "--runner=FnApiRunner"], check=True)
    expected = [json.loads(line) for line in (tmp_path / "expected.jsonl").read_text().splitlines()]
    found = [json.loads(line) for file in sorted(rows.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert found == expected
    (letter,) = [json.loads(line) for file in letters.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert letter["reason"] == "record must be one JSON object"
    assert letter["source"].endswith(f"/{name} partition 0")


def test_errors_name_the_option(broker, tmp_path):
    key = tmp_path / "noise.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)

    def said(source: str, *more: str) -> str:
        answer = subprocess.run([*command(source, tmp_path, key), *more], capture_output=True, text=True, check=False)
        assert answer.returncode == 2
        return answer.stderr

    assert "--input must be a topic of" in said(f"kafka://{broker}/missing")
    assert "--input must be of the form kafka://host:port/topic" in said("kafka://host")
    assert "kafka_setting must be one that librdkafka knows" in said(f"kafka://{broker}/t", "--kafka_setting=a.b=c")
    assert "kafka_setting must not set group.id" in said(f"kafka://{broker}/t", "--kafka_setting=group.id=c")
