"""Items of several columns from file to file: rows have these columns, in every format and wherever they are sent."""

import csv
import json

import polars
import pytest
from apache_beam.internal import pickler
from apache_beam.utils.timestamp import Timestamp
from example_results import arrow_table
from privstream.pipelines import cli
from privstream.pipelines.frames import ask, read
from privstream.pipelines.postgresql import PostgresTable
from privstream.pipelines.sinks.row_files import read_row_file, with_item_columns, write_row_file
from privstream.transforms.reading.domain import join_item
from privstream.transforms.row_types import KeyCount

TIME = "2030-01-01T00:00:00Z"
ITEMS = [("de", "a,b"), ("de,a", "b"), ('"q"', "de, x")]
FOUND = ["--window", "1h", "--start", "2030-01-01", "--end", "2030-01-01T01:00Z", "--max_contributions", "3"]
OPTIONS = ["--epsilon", "30", "--delta", "1e-6", *FOUND, "--item", "country,page"]


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["user", "country", "page", "time"])
        writer.writerows([f"u{n}", *item, TIME] for n in range(40) for item in ITEMS)
        writer.writerow(["v", "de", "", TIME])
    return path


def refused(call, capsys):
    assert cli.main(call) == 2
    return capsys.readouterr().err


def items_of(result):
    assert "item" not in result.table.column_names
    return sorted(zip(*(result.table[name].to_pylist() for name in ("country", "page")), strict=True))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_have_the_columns_and_are_read_again(kind, events, tmp_path, capsys):
    out = tmp_path / f"rows.{kind}"
    assert cli.main(["counts", "--input", str(events), "--output", str(out), *OPTIONS]) == 0
    assert "1 unusable" in capsys.readouterr().err
    result = read(out)
    assert items_of(result) == sorted(ITEMS) and result.chart().svg()


@pytest.mark.slow
def test_lists_have_the_columns(events, tmp_path):
    domain, out = tmp_path / "items.txt", tmp_path / "rows.csv"
    domain.write_text('de,"a,b"\nfr,x\n')
    call = ["counts", "--input", str(events), "--output", str(out), *OPTIONS, "--domain", str(domain)]
    assert cli.main(call) == 0
    assert items_of(read(out)) == [("de", "a,b"), ("fr", "x")]
    rules = tmp_path / "rules.jsonl"
    rules.write_text('{"name": "many", "at_least": 20, "items": ["de,\\"a,b\\""]}\n')
    alerts = ["alerts", "--input", str(events), "--output", str(tmp_path / "alerts.jsonl"), "--rules", str(rules)]
    alerts += ["--epsilon", "30", "--delta", "1e-6", "--window", "1h", "--start", "2030-01-01"]
    alerts += ["--end", "2030-01-01T01:00:00Z"]
    assert cli.main([*alerts, "--item", "country,page"]) == 0
    assert json.loads((tmp_path / "alerts.jsonl").read_text())["rule"] == "many"


def test_names_of_other_columns_are_refused_and_those_that_avro_has_not(events, tmp_path, capsys):
    events.write_text(events.read_text().replace("country", "people", 1).replace("page", "two words", 1))
    call = ["counts", "--input", str(events), *OPTIONS[:-1]]
    said = refused([*call, "people,two words", "--output", str(tmp_path / "rows.csv")], capsys)
    assert "item must not name `people`, which is another column" in said
    events.write_text(events.read_text().replace("people", "country", 1))
    said = refused([*call, "country,two words", "--output", str(tmp_path / "rows.avro")], capsys)
    assert "must not be Avro, which has no columns such as `two words`" in said
    assert cli.main([*call, "country,two words", "--output", str(tmp_path / "rows.csv")]) == 0


def test_a_frame_has_items_of_several_columns():
    rows = [(f"u{n}", *item, TIME) for n in range(40) for item in ITEMS]
    frame = polars.DataFrame(rows, schema=["user", "country", "page", "time"], orient="row")
    options = {"epsilon": 30, "delta": 1e-6, "window": "1h", "start": "2030-01-01", "end": "2030-01-01T01:00Z"}
    found = ask("counts", frame, **options, max_contributions=3, item=["country", "page"], ledger="none")
    assert items_of(found) == sorted(ITEMS)


HOUR = Timestamp(3600)
ROW = KeyCount(Timestamp(0), HOUR, join_item(ITEMS[0]), 5.1, 3.0, 7.0, 5)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "avro"])
@pytest.mark.parametrize("names", [("country", "page"), ("item", "page"), ("page", "item", "more"), ("a, b", '"')])
def test_files_give_back_the_rows_that_were_written(kind, names, tmp_path):
    row = ROW._replace(item=join_item(["a, b", '"', "x"][: len(names)]))
    path, written = str(tmp_path / f"rows.{kind}"), with_item_columns(KeyCount, names)
    write_row_file(path, written, [row])
    assert read_row_file(path, KeyCount) == [row] == read_row_file(path, written)


def test_databases_and_topics_have_the_columns():
    written = pickler.loads(pickler.dumps(with_item_columns(KeyCount, ("country", "page"))))
    table = PostgresTable("postgresql://me@host:5432/base/rows", "run", written, ("window_start", "item"))
    assert '"country" text NOT NULL, "page" text NOT NULL' in table.create_statement()
    assert '"item"' not in table.create_statement()
    key = {"run_id": "run", "window_start": "1970-01-01T00:00:00Z", "country": "de", "page": "a,b"}
    ((said, values),) = table.keyed(arrow_table(written, [ROW]))
    assert json.loads(said) == key
    assert values["page"] == "a,b" and "item" not in values
