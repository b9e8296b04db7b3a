"""A monitor on every runner: over files, and over a folder that is watched, with rows as windows close."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import runner_harness
import test_watch_command
from privstream.pipelines import cli
from test_watch_command import same_noise  # noqa: F401 - of a stream its output folder counts

FILES = """\
data: {{input: {input}, user: customer, time: ts{watch}}}
windows: {{window: 1h, start: 2026-01-01, end: 2026-01-01T04:00}}
privacy: {{epsilon: 8, delta: 1.0e-6}}
questions:
  pages:   {{question: counts, item: [country, page], share: 3, max_contributions: 20}}
  latency: {{question: quantiles, value: ms, low: 1, high: 60000, max_contributions: 4}}
  present: {{question: cardinality, timeout: 30m}}
views:
  sums:  {{of: pages, over: 2h}}
  busy:  {{of: pages, item: [de, /1], above: 20, for: 2}}
output: {{path: {output}}}
account: {{key: noise.key, ledger: none, run_id: clicks}}
"""
SECONDS = 240
RUNNERS = [
    pytest.param("prism", marks=[pytest.mark.prism, pytest.mark.slow]),
    pytest.param("flink", marks=[pytest.mark.flink, pytest.mark.slow, pytest.mark.xdist_group("flink")]),
]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with events of four hours in a folder, and what one runner makes of them."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for hour in range(4):
        rows = [
            f"c{number},{'de' if number % 2 else 'fr'},/{number % 3},2026-01-01T0{hour}:{number % 60:02}:00Z,{number}"
            for number in range(1, 200)
        ]
        Path(f"in/{hour}.csv").write_text("\n".join(["customer,country,page,ts,ms", *rows, "c1,de,/a,,5"]) + "\n")
    Path("noise.key").write_bytes(bytes(range(32)))
    os.chmod("noise.key", 0o600)
    Path("files.yaml").write_text(FILES.format(input="in", watch="", output="expected"))
    assert cli.main(["run", "files.yaml", "--runner=FnApiRunner"]) == 0
    return tmp_path


def rows_of(folder: Path) -> list[str]:
    """Return the rows of windows, but for columns that only the end of a run knows."""
    files = sorted(folder.glob("*.csv")) if folder.is_dir() else [folder.with_suffix(".csv")]
    return [",".join(line.split(",")[:6]) for file in files for line in file.read_text().splitlines()[1:]]


def records(name: str, column: str) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a folder, each with the hour that a column says, or else the end in the name of its file."""
    files = sorted(Path("found", name).glob("*.csv"))
    rows = [(file, row) for file in files for row in csv.DictReader(file.read_text().splitlines())]
    return [(int(row[column][11:13] if column else file.name.split("_")[1][9:11]), row) for file, row in rows]


def views_are_of_what_was_known() -> None:
    """Compare views with sums and states of the rows that had been published by the end of each window."""
    rows = [(hour - 1, int(row["window_end"][11:13]) - 1, row) for hour, row in records("pages", "")]
    sums = {(hour, row["country"], row["page"]): int(row["noisy"]) for hour, row in records("sums", "window_start")}
    assert any(reported > window for reported, window, _ in rows) and sums
    for hour in range(4):
        known = [(window, row) for reported, window, row in rows if reported <= hour]
        here = [row for window, row in known if window == hour]
        for row in here:
            own = [int(one["noisy"]) for window, one in known if hour - 1 <= window and same(one, row)]
            assert sums.pop((hour, row["country"], row["page"])) == sum(own)
    assert not sums
    beyond = {
        (reported, window): float(row["people"]) > 20
        for reported, window, row in rows
        if (row["country"], row["page"]) == ("de", "/1")
    }
    states = [row["state"] for _, row in records("busy", "window_start")]
    assert [state == "alert" for state in states] == [
        all(any(beyond.get((by, window)) for by in range(window + 1)) for window in (hour - 1, hour))
        for hour in range(4)
    ]


def same(one: dict[str, str], other: dict[str, str]) -> bool:
    """Tell whether two rows are about one item."""
    return (one["country"], one["page"]) == (other["country"], other["page"])


@pytest.mark.parametrize("runner", RUNNERS[1:])
def test_files_give_the_same_rows(runner: str, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("monitor.yaml").write_text(FILES.format(input="in", watch="", output="found"))
    assert cli.main(["run", "monitor.yaml", *test_watch_command.options(runner)]) == 0
    for name in ("pages", "latency", "present", "sums", "busy"):
        assert Path(f"found/{name}.csv").read_bytes() == Path(f"expected/{name}.csv").read_bytes()
    assert capsys.readouterr().err.count("796 of 800 rows used") == 1


@pytest.mark.parametrize("runner", [pytest.param("fn_api", marks=pytest.mark.slow), RUNNERS[0]])
def test_a_watched_folder_gives_the_same_rows(runner: str, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner_harness.require(runner)
    text = FILES.format(input="in", watch=", watch: 0.2, watermark: marks", output="found")
    Path("monitor.yaml").write_text(text.replace("path: found", "path: found, dead_letter: bad"))
    for name in ("_UNTIL_20260101T040000Z", "_END"):
        Path("in", name).touch()
    Path("bad").mkdir()
    local = ["--runner=FnApiRunner"]
    Path("local.yaml").write_text(text.replace("path: found", "path: local"))
    assert cli.main(["run", "local.yaml", *local]) == 0
    capsys.readouterr()
    chosen = local if runner == "fn_api" else test_watch_command.options(runner)
    assert cli.main(["run", "monitor.yaml", *chosen]) == 0
    for name in ("pages", "latency", "present"):
        assert sorted(rows_of(Path("found", name))) == sorted(rows_of(Path("local", name)))
        assert Path("found", name, "_END").exists() and Path("found", name, "_guarantee.json").exists()
    assert Path("found/_guarantee.json").exists()
    views_are_of_what_was_known()
    before = {path: path.read_bytes() for path in Path("found").rglob("*.csv")}
    assert sum(len(file.read_text().splitlines()) for file in Path("bad").glob("*.jsonl")) == 4
    assert "796 of 800 rows used" in capsys.readouterr().err
    for end in Path("found").glob("*/_END"):
        end.unlink()  # as if the run had stopped before
    Path("monitor.yaml").write_text(text.replace("above: 20", "above: 30"))
    assert cli.main(["run", "monitor.yaml", *chosen]) == 2
    assert "line 10: views.busy: must be as it was when found/busy was begun" in capsys.readouterr().err
    Path("monitor.yaml").write_text(text)
    assert cli.main(["run", "monitor.yaml", *chosen]) == 0, "it starts again, and changes nothing"
    assert {path: path.read_bytes() for path in Path("found").rglob("*.csv")} == before
    for end in Path("found").glob("*/_END"):
        end.unlink()
    Path("monitor.yaml").write_text(text.replace("high: 60000", "high: 50000"))
    assert cli.main(["run", "monitor.yaml", *chosen]) == 2
    assert "is of another one, which differs in what is read or drawn" in capsys.readouterr().err


OF_A_TOPIC = """\
data: {{input: {topic}, user: user, item: item, time: time, time_unit: s, watch: 0.3}}
windows: {{window: 2s, start: '{start}', renew_every: 1h, allowed_lateness: 4s}}
privacy: {{epsilon: 8, delta: 1.0e-6}}
questions:
  things: {{question: counts, max_contributions: 9}}
  guests: {{question: cardinality, timeout: 4s}}
views:
  sums: {{of: things, over: 4s}}
  high: {{of: things, item: a, above: 20}}
output: {{path: out, format: jsonl, send: ['{database}', 'kafka://{broker}']}}
account: {{key: noise.key, ledger: none, run_id: clicks}}
"""
NAMES = ("things", "guests", "sums", "high")


@pytest.mark.parametrize("runner", [RUNNERS[-1]])
def test_a_topic_gives_tables_and_topics_of_questions_and_views(runner, broker, postgres, tmp_path, monkeypatch):
    """While records come: what is in a table and in a topic is what is in the files."""
    kafka, admin = pytest.importorskip("confluent_kafka"), pytest.importorskip("confluent_kafka.admin")
    monkeypatch.chdir(tmp_path)
    chosen = test_watch_command.options(runner, own_server=True)
    topics = [admin.NewTopic(name, 1, 1) for name in ("taps", *NAMES)]
    client = admin.AdminClient({"bootstrap.servers": broker})
    for made in client.create_topics(topics).values():
        made.result()
    Path("noise.key").write_bytes(bytes(range(32)))
    os.chmod("noise.key", 0o600)
    start = datetime.fromtimestamp(time.time() // 2 * 2, UTC).isoformat()
    database = postgres.url("")[:-1]
    text = OF_A_TOPIC.format(topic=f"kafka://{broker}/taps", start=start, database=database, broker=broker)
    Path("monitor.yaml").write_text(text)
    command = [*test_watch_command.PRIVSTREAM, "run", "monitor.yaml", *chosen]
    process = subprocess.Popen(command, start_new_session=True)
    producer, deadline = kafka.Producer({"bootstrap.servers": broker}), time.monotonic() + SECONDS
    try:
        while len(list(Path("out/high").glob("*.jsonl"))) < 4 or len(list(Path("out/sums").glob("*.jsonl"))) < 3:
            assert process.poll() is None and time.monotonic() < deadline
            for user in range(100):
                event = {"user": f"{time.time()}-{user}", "item": "ab"[user % 2], "time": time.time()}
                producer.produce("taps", json.dumps(event).encode())
            producer.flush()
            time.sleep(0.3)
        written, deadline = {name: _texts(_rows_of(name)) for name in NAMES}, time.monotonic() + SECONDS
        while not all(written[name] <= _sent(broker, name) for name in NAMES):  # the rows of a file are sent after it
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.3)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for name in NAMES:
        sent, found = _sent(broker, name), _texts(_rows_of(name))
        (rows,) = postgres.ask(f"SELECT count(*) FROM {name}")[0]
        assert sent <= found and len(sent) <= rows <= len(found), "to the table before the topic"


def _sent(broker: str, name: str) -> set[str]:
    """Return the rows that a topic has by now."""
    kafka = pytest.importorskip("confluent_kafka")
    consumer = kafka.Consumer({"bootstrap.servers": broker, "group.id": "test"})
    place = kafka.TopicPartition(name, 0, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=SECONDS)
    consumer.assign([place])
    messages = consumer.consume(end, timeout=SECONDS) if end else []
    consumer.close()
    assert len(messages) == end
    return _texts(json.loads(message.value()) for message in messages)


def _texts(rows: Iterable[dict[str, object]]) -> set[str]:
    """Return rows as they can be compared."""
    return {json.dumps(row) for row in rows}


def _rows_of(name: str) -> list[dict[str, object]]:
    """Return the rows in the files of a question or view."""
    return [json.loads(line) for file in Path("out", name).glob("*.jsonl") for line in file.open()]
