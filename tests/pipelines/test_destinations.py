"""Rows that go to a topic or a table: keys, places and refusals, without a server."""

import json

import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines import cli
from privstream.pipelines.questions.catalogue import WORDS, question
from privstream.pipelines.sinks.destination import Destination, UnreachableError
from privstream.transforms.rows import HeavyHitter, QueryAnswer

RUN = ["counts", "--input=events.jsonl", "--epsilon=1", "--window=1h", "--ledger=none"]
NAMED = {"item", "rule", "query", "rank", "quantile", "category", "low", "high"}
"""Fields that tell what a row is about, beside its stream and its time."""


class Kept(Destination):
    """A destination that keeps rows, or is away."""

    def check(self, *, first):
        pass

    def name(self):
        return "memory"

    def send(self, rows):
        raise UnreachableError("away")


@pytest.mark.parametrize("word", WORDS)
def test_the_key_of_a_row_is_its_stream_its_time_and_what_it_is_about(word):
    spec = question(word)
    fields = set(spec.row_type._fields)
    times = {"time", "window_start"} & fields
    known = {"rank"} if "rank" in fields else NAMED & fields
    assert set(spec.key) == ({"stream"} & fields) | times | known


def hitter(item: str) -> HeavyHitter:
    start, end = Timestamp(0), Timestamp(3600)
    return HeavyHitter.in_time("no", start, end, item, 5, 1.5, start, "started")


def test_keys_name_the_run_and_are_the_same_again():
    keys = Kept("run 1", HeavyHitter, question("heavy-hitters").key).row_keys([hitter("a"), hitter("b")])
    assert json.loads(keys[0]) == {
        "run_id": "run 1",
        "stream": "no",
        "window_start": "1970-01-01T00:00:00Z",
        "item": "a",
    }
    assert len(set(keys)) == 2
    assert keys == Kept("run 1", HeavyHitter, question("heavy-hitters").key).row_keys([hitter("a"), hitter("b")])
    assert set(keys).isdisjoint(Kept("run 2", HeavyHitter, question("heavy-hitters").key).row_keys([hitter("a")]))


def test_rows_that_nothing_distinguishes_are_all_kept():
    answers = [QueryAnswer("q", Timestamp(1), estimate, 1.0, "measured", 1) for estimate in (5.0, 6.0, 7.0)]
    keys = Kept("run", QueryAnswer, question("queries").key).row_keys(answers)
    assert [json.loads(key).get("number") for key in keys] == [None, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output=kafka://h:1/t"], "--copy must be given with an --output of kafka:// or postgresql://"),
        (["--output=rows.csv", "--copy=rows.avro"], "--copy must be given with an --output of kafka:// or postgresql"),
        (["--output=rows.csv", "--kafka_setting=a=b"], "--kafka_setting must be given with an --input or --output of"),
        (["--output=kafka://h:1/t", "--copy=rows.txt"], "--copy must end in .avro, .parquet, .jsonl, .csv"),
        (["--output=kafka://h:1/t", "--copy=nowhere/rows.csv"], "--copy must be in a folder that exists"),
        (["--output=kafka://h:1/t", "--copy=there.csv"], "--copy must be a new file, but there.csv exists"),
        (["--output=kafka://h:1/t", "--copy=r.csv", "--kafka_setting=acks=1"], "must not set acks"),
        (["--output=kafka://h:1", "--copy=r.csv"], "--output must be of the form kafka://host:port/topic"),
    ],
)
def test_options_are_refused_by_name(options, message, tmp_path, monkeypatch, capsys):
    pytest.importorskip("confluent_kafka")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"user": "u", "item": "i", "time": "2024-01-01T00:00:00Z"}\n')
    (tmp_path / "there.csv").touch()
    assert cli.main([*RUN, *options, "--delta=1e-6", "--max_contributions=3", "--horizon=9", "--start=2024-01-01"]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "there.csv"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://u:secret@h/d/t", "without a password or settings: set PGPASSWORD, or write ~/.pgpass"),
        ("postgresql://u@h/d/t?password=secret", "without a password or settings"),
        ("postgresql://u@h:secret/d/t", "must be of the form postgresql://user@host:port/database/table"),
        ("postgresql://u@h/secret", "must be of the form"),
        ("postgresql://u@/d/secret", "must be of the form"),
        ("postgresql://u@h/d/secret.a.b", "must be of the form"),
        ("postgresql://u@h/d/secret/b", "must be of the form"),
    ],
)
def test_a_url_with_a_password_or_of_another_form_is_refused_and_not_quoted(url, message):
    tables = pytest.importorskip("privstream.pipelines.sinks.postgres_table", exc_type=ImportError)
    with pytest.raises(ValueError, match=r"^--output must be of the form") as error:
        tables.PostgresTable(url, "run", HeavyHitter, ("item",))
    assert message in str(error.value)
    assert "secret" not in str(error.value)


def test_a_url_says_where_the_table_is():
    tables = pytest.importorskip("privstream.pipelines.sinks.postgres_table", exc_type=ImportError)
    assert tables.parse_url("postgresql://me%40home@db.example:5433/results/trends.hourly") == (
        {"host": "db.example", "port": 5433, "user": "me@home", "dbname": "results"},
        ("trends", "hourly"),
    )
    assert tables.parse_url("postgresql://h/d/t") == ({"host": "h", "dbname": "d"}, ("t",))
