"""A query to a real PostgreSQL as input: types, what it may not do, and what errors do not say."""

import csv
from pathlib import Path

import postgres_server
import pytest
from privstream.pipelines import cli
from privstream.pipelines.sources.fields import Readings
from privstream.pipelines.sources.frame_files import save_rows
from raw_rows import readings

pytest.importorskip("psycopg")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("destinations")]

FIELDS = readings(user="who", item="page", time="seen", value="amount")
TABLE = """
    CREATE TABLE visits (who int, page varchar(9), seen timestamptz, here timestamp, amount numeric(10, 2), more jsonb,
    id uuid)
"""
VISITS = """
    INSERT INTO visits SELECT i % 400, 'p' || (i % 2), '2024-01-01 08:00Z'::timestamptz + i % 24 * interval '1 hour',
    '2024-01-01 08:00'::timestamp + i % 24 * interval '1 hour', i % 100 + 0.25, '{}', gen_random_uuid()
    FROM generate_series(1, 3000) i
"""
ODD = """
    INSERT INTO visits VALUES (1, 'p0', 'infinity', '-infinity', 'NaN'), (NULL, NULL, NULL, NULL, NULL)
"""


@pytest.fixture(scope="module")
def url(postgres):
    for statement in (TABLE, VISITS, ODD):
        postgres.ask(statement)
    return postgres.url("").rstrip("/")


def read(url: str, query: str, folder: Path, fields: Readings = FIELDS) -> list[dict[str, str]]:
    path = folder / "saved.csv"
    path.unlink(missing_ok=True)
    save_rows(url, query, fields, str(path))
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_columns_are_read_as_texts(url, tmp_path):
    query = "SELECT who, page, seen, amount, here, id, who > 0 AS paid FROM visits ORDER BY seen, who, page"
    found = read(url, query, tmp_path)
    assert len(found) == 3002 and list(found[0]) == ["who", "page", "seen", "amount"]
    assert found[0]["seen"] == "2024-01-01 08:00:00+00" and found[0]["amount"].endswith(".25")
    assert found[3000]["seen"] == "infinity" and found[3001] == dict.fromkeys(found[0], "")
    local = readings(user="id", item="paid", time="here", time_zone="Europe/Berlin")
    found = read(url, query, tmp_path, local)
    assert found[0]["here"] == "2024-01-01 08:00:00" and len(found[0]["id"]) == 36
    assert found[0]["paid"] in ("true", "false")
    assert not read(url, f"SELECT * FROM ({query}) AS q WHERE who = 5000", tmp_path)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT page::int AS who, page, seen, amount FROM visits", "SQLSTATE 22P02"),
        ("SELECT who, page, seen FRM visits", "syntax error at or near"),
        ("SELECT who, who, page, seen, amount FROM visits", "the query has 2 called `who`"),
        ("SELECT 1) AS q; COMMIT; DROP TABLE visits; SELECT * FROM (SELECT 1", "multiple commands"),
        ("WITH gone AS (DELETE FROM visits RETURNING *) SELECT * FROM gone", "SQLSTATE 0A000"),
        ("SELECT 1; DROP TABLE visits", "syntax error at or near"),
        ("SELECT nextval('numbers') AS who, page, seen, amount FROM visits", "read-only transaction"),
        ("SELECT page::regclass::text AS page, who, seen, amount FROM visits", "SQLSTATE 42P01"),
        ("SELECT current_setting(page) AS page, who, seen, amount FROM visits", "SQLSTATE 42704"),
        (
            "SELECT query_to_xml('SELECT ' || page, true, true, '')::text AS page, who, seen, amount FROM visits",
            "SQLSTATE 42703",
        ),
    ],
)
def test_what_the_database_refuses_is_told_without_a_value(query, message, url, postgres, tmp_path):
    postgres.ask("CREATE SEQUENCE IF NOT EXISTS numbers")
    with pytest.raises(ValueError, match=message) as refused:
        read(url, query, tmp_path)
    assert "p0" not in str(refused.value) and "p1" not in str(refused.value)
    assert postgres.ask("SELECT count(*) FROM visits") == [(3002,)]


def test_a_password_is_nowhere(url, tmp_path, monkeypatch, capsys):
    run = ["counts", "--query", "SELECT who, page, seen FROM visits ORDER BY seen, who", "--user", "who",
           "--item", "page", "--time", "seen", "--window", "1d", "--start", "2024-01-01", "--end",
           "2024-01-03", "--epsilon", "1", "--delta", "1e-6", "--max_contributions", "4", "--output",
           str(tmp_path / "rows.jsonl"), "--ledger", str(tmp_path / "ledger.jsonl")]  # fmt: skip
    assert cli.main([*run, "--input", url]) == 0
    assert "3,000 of 3,002 rows used" in capsys.readouterr().err
    monkeypatch.setenv("PGPASSWORD", "another battery")
    assert cli.main([*run, "--input", url, "--overwrite"]) == 2
    told = capsys.readouterr().err
    assert "--input must be a database that answers: " in told and "battery" not in told
    given = url.replace("monitor@", "monitor:secret@")
    assert cli.main([*run, "--input", given, "--overwrite"]) == 2
    told = capsys.readouterr().err
    assert "without a password" in told and "secret" not in told
    written = "".join(path.read_text() for path in tmp_path.iterdir() if path.is_file())
    assert "battery" not in written and postgres_server.PASSWORD not in written
