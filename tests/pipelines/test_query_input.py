"""A query as input: rows of a database are events, read once; DuckDB here, PostgreSQL with a server of its own."""

import csv
import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
from privstream.pipelines import cli
from privstream.pipelines.run import pipeline
from privstream.pipelines.run.run import Run
from privstream.pipelines.sources.fields import Readings
from privstream.pipelines.sources.formats import InputFileError
from privstream.pipelines.sources.frame_files import save_rows
from raw_rows import readings

duckdb = pytest.importorskip("duckdb")

FIELDS = readings(user="who", item="page", time="seen")
SOURCE = """
    SELECT i % 400 AS who, 'p' || (i % 2) AS page, TIMESTAMPTZ '2024-01-01 08:00:00+00' + (i % 24) * INTERVAL 1 HOUR
    AS seen, (i / 4)::DECIMAL(10, 2) AS amount, uuid() AS id FROM range({rows}) AS t(i)
"""
RUN = ["counts", "--window", "1d", "--start", "2024-01-01", "--end", "2024-01-03", "--epsilon", "1", "--delta", "1e-6",
       "--max_contributions", "4", "--user", "who", "--item", "page", "--time", "seen"]  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> str:
    path = str(tmp_path / "shop.duckdb")
    with duckdb.connect(path) as connection:
        connection.execute(f"CREATE TABLE visits AS {SOURCE.format(rows=3000)}")
        connection.execute("INSERT INTO visits VALUES (NULL, 'p0', NULL, NULL, NULL)")
    return path


def saved(shop: str, query: str, folder: Path, fields: Readings = FIELDS) -> str:
    path = folder / "saved.csv"
    path.unlink(missing_ok=True)
    save_rows(shop, query, fields, str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text()


def test_rows_are_kept_in_their_order_with_the_columns_that_are_read(shop, tmp_path):
    whole = saved(shop, "SELECT * FROM visits ORDER BY ALL", tmp_path)
    names, *found = csv.reader(whole.splitlines())
    assert names == ["who", "page", "seen"] and len(found) == 3001 and found[0] == ["0", "p0", "2024-01-01 08:00:00+00"]
    assert found[3000] == ["", "p0", ""] and found[:3000] == sorted(found[:3000], key=lambda row: int(row[0]))
    assert saved(shop, "SELECT seen, who, page, 1 AS more FROM visits ORDER BY who, page, seen", tmp_path) == whole
    assert saved(shop, "SELECT * FROM visits ORDER BY seen", tmp_path) != whole
    odd = """SELECT 'a"b,c\n' AS page, TRUE AS who, DATE '2024-01-01' AS seen"""
    assert saved(shop, odd.replace("\\n", "\n"), tmp_path).endswith('"true","a""b,c\n","2024-01-01"\n')


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT who, page FROM visits", "--time must name a field of the query: no `seen` there, only: page"),
        ("SELECT who, who, page, seen FROM visits", "called `who`|Binder"),
        ("SELECT who FRM visits", "query must be one that DuckDB can answer: Parser Error: syntax error"),
        ("SELECT * FROM sales", "query must be one that DuckDB can answer: Catalog Error: Table with name sales do"),
        ("SELECT page::INT AS who, page, seen FROM visits", "DuckDB has a ConversionException$"),
        ("SELECT error(page) AS who, page, seen FROM visits", "DuckDB has a InvalidInputException$"),
        ("DELETE FROM visits", "query must be one SELECT"),
        ("SELECT 1; SELECT 2", "query must be one SELECT"),
        ("COPY visits TO 'elsewhere.csv'", "query must be one SELECT"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_told_without_a_value(query, message, shop, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message) as refused:
        saved(shop, query, tmp_path)
    assert "p0" not in str(refused.value) and "p1" not in str(refused.value)


def test_what_is_no_database_is_named(tmp_path):
    (tmp_path / "text.duckdb").write_text("user,item,time\n")
    with pytest.raises(InputFileError, match=r"must be a database that DuckDB can open, got .*text\.duckdb$"):
        saved(str(tmp_path / "text.duckdb"), "SELECT 1", tmp_path)
    with pytest.raises(InputFileError, match=r"must be a file of DuckDB that exists, got .*none\.duckdb$"):
        saved(str(tmp_path / "none.duckdb"), "SELECT 1", tmp_path)
    assert not (tmp_path / "none.duckdb").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_a_run_leaves_no_rows_behind(number, shop, tmp_path, capsys, monkeypatch):
    def saved_then_ended(*_: object) -> None:
        assert [file.stat().st_size > 0 for file in temporary.glob("privstream-*/*")] == [True]
        os.kill(os.getpid(), number)

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(Run, "execute", saved_then_ended)
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        cli._end_in_order()
        status = cli.main([*RUN, "--input", shop, "--query", "SELECT * FROM visits", "--ledger", "none"])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert status == 128 + number and "interrupted; no file is half-written" in capsys.readouterr().err
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_run_on_a_query_is_known_by_its_rows(shop, tmp_path, capsys, monkeypatch):
    folders = []
    monkeypatch.setattr(pipeline, "save_rows", lambda *given: (folders.append(Path(given[-1])), save_rows(*given)))
    (tmp_path / "key").write_text("0123456789abcdef" * 2)
    (tmp_path / "key").chmod(0o600)
    files = ["--output", str(tmp_path / "rows.jsonl"), "--key", str(tmp_path / "key"), "--overwrite"]

    def run(query: str, *more: str) -> str:
        assert cli.main([*RUN, "--input", shop, "--query", query, *files, *more]) == 0
        assert folders and not folders[-1].parent.exists()
        return capsys.readouterr().err

    told = run("SELECT * FROM visits ORDER BY ALL", "--dead_letter", str(tmp_path / "letters.jsonl"))
    assert "3,000 of 3,001 rows used" in told and "the only run on" in told
    assert json.loads((tmp_path / "letters.jsonl").read_text())["position"] == "line 3002"
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 4
    assert (
        "SELECT"
        not in (tmp_path / "rows.jsonl.guarantee.json").read_text() + (tmp_path / "key.ledger.jsonl").read_text()
    )
    assert "a repetition" in run("SELECT who, page, seen FROM visits ORDER BY who, page, seen, amount")
    assert "a repetition" not in run("SELECT * FROM visits WHERE who > 0 ORDER BY ALL")
