"""Rows in a real PostgreSQL and a real Kafka: each is there once, whatever is away or comes again."""

import json
import threading
import time

import postgres_server
import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import arrow_table
from privstream.pipelines import cli
from privstream.pipelines.model.catalogue import HeavyHitters
from privstream.pipelines.sinks.row_files import key_of
from privstream.pipelines.sinks.writers import UnreachableError
from privstream.transforms.row_types import HeavyHitter

pytest.importorskip("confluent_kafka")
pytest.importorskip("psycopg")
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from privstream.pipelines.kafka import KafkaTopic
from privstream.pipelines.postgresql import PostgresTable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("destinations")]
AWAY_SECONDS = 2
OPTIONS = (
    "--window 3600 --epsilon 4 --delta 1e-6 --max-hits 4 --method clock --run-id same --key key "
    "--start 2024-01-01T00:00Z --end 2024-01-01T04:00Z"
)


def hitter(item, hour=0, count=5):
    start = Timestamp(3600 * hour)
    return HeavyHitter(start, start + 3600, item, float(count), 0.0, count + 3.0, start, "started")


ROWS = arrow_table(HeavyHitter, [hitter("tea", hour, 7 * hour) for hour in range(3)])


def table(postgres, name, run="run 1", **options):
    return PostgresTable(postgres.url(name), run, HeavyHitter, key_of(HeavyHitters.info.order), **options)


def items(postgres, name):
    return [item for (item,) in postgres.ask(f"SELECT item FROM {name} ORDER BY window_start, item")]


def test_a_row_is_in_the_table_once_and_runs_share_it(postgres):
    one, other = table(postgres, "shared"), table(postgres, "shared", "run 2")
    one.check(first=True)
    for rows in (ROWS, ROWS, ROWS.take([2, 1, 0])):
        one.send(rows)
    other.check(first=True)
    other.send(ROWS[:1])
    found = postgres.ask("SELECT run_id, extract(epoch FROM window_end)::int, item, people FROM shared ORDER BY 1, 2")
    assert found == [*(("run 1", 3600 * (hour + 1), "tea", 7 * hour) for hour in range(3)), ("run 2", 3600, "tea", 0)]
    with pytest.raises(ValueError, match="must be a table without rows of this run, but shared of results on"):
        one.check(first=True)
    one.check(first=False)
    table(postgres, "shared", replace=True).send(ROWS[1:2])
    assert postgres.ask("SELECT run_id, people FROM shared ORDER BY 1") == [("run 1", 7), ("run 2", 0)]


def test_hostile_texts_are_rows_like_others(postgres):
    hostile = ["x'; DROP TABLE hostile; --", "%s", "a\0b", "a\u2400b", "é" * 8192, '"', "\\", ""]
    destination = table(postgres, "hostile")
    destination.check(first=True)
    destination.send(arrow_table(HeavyHitter, [hitter(item) for item in hostile]))
    assert sorted(items(postgres, "hostile")) == sorted(item.replace("\0", "\u2400") for item in hostile)


def test_a_database_that_is_away_for_a_while_gets_every_row_once(postgres):
    destination = table(postgres, "patient")
    destination.check(first=True)
    postgres.stop()
    sending = threading.Thread(target=lambda: [destination.send(ROWS[at : at + 1]) for at in range(3)])
    sending.start()
    time.sleep(AWAY_SECONDS)
    assert sending.is_alive()
    postgres.start()
    sending.join(60)
    assert items(postgres, "patient") == ["tea"] * 3


def test_a_database_that_stays_away_is_an_error_in_one_line(postgres, monkeypatch):
    destination = table(postgres, "late")
    destination.check(first=True)
    destination.patience = 0.5
    monkeypatch.setenv("PGPASSWORD", "a wrong one")
    with pytest.raises(UnreachableError, match=r"in 0\.5 s: .*password authentication failed") as error:
        destination.send(ROWS)
    assert "\n" not in str(error.value) and "a wrong one" not in str(error.value)
    assert items(postgres, "late") == []


def test_tables_that_cannot_take_the_rows_are_refused_before_the_run(postgres, monkeypatch):
    postgres.ask("CREATE TABLE narrow (item text, n int)")
    with pytest.raises(ValueError, match=r"but narrow of results .* differs in .*people"):
        table(postgres, "narrow").check(first=True)
    postgres.ask(table(postgres, "keyless").create_statement().replace("PRIMARY KEY", "NOT NULL"))
    with pytest.raises(ValueError, match=r"must be a table that takes rows, .*: there is no unique"):
        table(postgres, "keyless").check(first=True)
    with pytest.raises(ValueError, match=r'may be created: schema "none" does not exist\. Run: CREATE TABLE'):
        table(postgres, "none.trends").check(first=True)
    monkeypatch.setenv("PGPASSWORD", "a wrong one")
    with pytest.raises(ValueError, match=r"database that answers: .*password authentication failed") as error:
        table(postgres, "trends").check(first=True)
    assert "\n" not in str(error.value) and "a wrong one" not in str(error.value)


def topic(broker, name):
    client = AdminClient({"bootstrap.servers": broker})
    (made,) = client.create_topics([NewTopic(name, 1, 1)]).values()
    made.result()
    return KafkaTopic(f"kafka://{broker}/{name}", "run 1", HeavyHitter, key_of(HeavyHitters.info.order))


def messages(broker, name, number):
    """Return the messages, of which there are so many."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(name, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=30)
    found = consumer.consume(end, timeout=30)
    consumer.close()
    assert len(found) == end == number
    return [(json.loads(message.key()), json.loads(message.value())) for message in found]


def test_a_topic_gets_rows_as_lines_of_json_under_their_keys(broker):
    destination = topic(broker, "rows")
    destination.check(first=True)
    destination.send(ROWS)
    with pytest.raises(UnreachableError, match="could not be sent"):
        destination.send(arrow_table(HeavyHitter, [hitter("x" * (1 << 20))]))  # too large for the broker
    (key, value), *_ = found = messages(broker, "rows", 3)
    assert key == {"run_id": "run 1", "window_start": "1970-01-01T00:00:00Z", "item": "tea"}
    assert value["people"] == 0 and value["window_end"] == "1970-01-01T01:00:00Z"
    destination.send(ROWS)
    assert messages(broker, "rows", 6) == found + found


def test_a_broker_that_is_away_for_a_while_gets_every_row(kafka, broker):
    destination = topic(broker, "patient")
    kafka.stop()
    sending = threading.Thread(target=destination.send, args=[ROWS])
    sending.start()
    time.sleep(AWAY_SECONDS)
    assert sending.is_alive()
    kafka.start()
    sending.join(120)
    assert [value["people"] for _, value in messages(broker, "patient", 3)] == [0, 7, 14]


@pytest.fixture
def searches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "incoming").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    source = "--users 3000 --items 300 --windows 4 --seed 7 --output incoming/events.parquet"
    assert cli.main(["simulate", *source.split()]) == 0
    return tmp_path


def run(*options):
    return cli.main(["heavy-hitters", *OPTIONS.split(), "--runner=FnApiRunner", *options])


def test_a_run_over_files_fills_a_table(postgres, searches, capsys):
    to = ["--input=incoming/events.parquet", f"--send={postgres.url('files')}", "--output=rows.jsonl"]
    assert run(*to) == 0
    assert f"rows sent to files of {postgres_server.DATABASE}" in capsys.readouterr().err
    lines = [json.loads(line) for line in (searches / "rows.jsonl").read_text().splitlines()]
    assert lines and items(postgres, "files") == [
        line["item"] for line in sorted(lines, key=lambda line: (line["window_start"], line["item"]))
    ]
    before = postgres.ask("SELECT * FROM files ORDER BY row_key")
    assert run(*to, "--overwrite") == 0
    assert postgres.ask("SELECT * FROM files ORDER BY row_key") == before
    (entry, _) = [json.loads(line) for line in (searches / "key.ledger.jsonl").read_text().splitlines()]
    assert entry["output"] == "rows.jsonl"
    assert not any(postgres_server.PASSWORD.encode() in path.read_bytes() for path in searches.glob("*.*"))


COUNTED = (
    "--window 3600 --start 2024-01-01T00:00Z --end 2024-01-01T08:00Z --epsilon 4 --delta 1e-3 --max-contributions 8 "
    "--run-id same --key key --input=incoming --watch=0.2 --watermark=marks --output=copy --runner=FnApiRunner"
)


@pytest.mark.parametrize("kind", ["table", "topic"])
def test_rows_of_windows_before_an_item_was_found_are_there_once(kind, searches, request):
    """They come with a later window, under the keys of their own windows, and a second run changes nothing."""
    events = [
        {"user": f"{item} {number}", "item": item, "time": f"2024-01-01T{hour:02}:00:{number:02}Z"}
        for item, at_first in (("loud", 40), ("seldom", 2))
        for hour in range(8)
        for number in range(at_first if hour < 2 else 40)
    ]
    (searches / "incoming" / "events.parquet").unlink()
    (searches / "incoming" / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    for name in ("_UNTIL_20300101T000000Z", "_END"):
        (searches / "incoming" / name).touch()
    server = request.getfixturevalue("postgres" if kind == "table" else "broker")
    if kind == "topic":
        topic(server, "counted")
    to = f"--send={server.url('counted') if kind == 'table' else f'kafka://{server}/counted'}"
    assert cli.main(["counts", *COUNTED.split(), to]) == 0
    files = {file: map(json.loads, file.read_text().splitlines()) for file in (searches / "copy").glob("*.jsonl")}
    published = [(file.stem.split("_")[1], line) for file, lines in files.items() for line in lines]
    late = [(end, line["item"]) for end, line in published if end != line["window_end"].translate({45: "", 58: ""})]
    assert {item for _, item in late} == {"seldom"} and len({end for end, _ in late}) == 1
    lines = [line for _, line in published]
    expected = sorted((line["window_start"], line["item"], line["noisy"]) for line in lines)
    assert len({line[:2] for line in expected}) == len(lines) == 16
    (searches / "copy" / "_END").unlink()
    if kind == "topic":
        found = messages(server, "counted", len(lines))
        places = [(key["window_start"], key["item"]) for key, _ in found]
        assert sorted((*place, value["noisy"]) for place, (_, value) in zip(places, found, strict=True)) == expected
        assert cli.main(["counts", *COUNTED.split(), to]) == 0
        again = messages(server, "counted", 2 * len(lines))
        assert {json.dumps(message) for message in again} == {json.dumps(message) for message in found}
        return
    asked = 'SELECT to_char(window_start, \'YYYY-MM-DD"T"HH24:MI:SS"Z"\'), item, noisy FROM counted ORDER BY 1, 2, 3'
    assert server.ask(asked) == expected
    assert cli.main(["counts", *COUNTED.split(), to]) == 0
    assert server.ask(asked) == expected
