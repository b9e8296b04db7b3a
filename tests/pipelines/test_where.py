"""Filters on files: a filtered run is a run on a file that was filtered before, in every format, whatever is in it."""

import json

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.pipelines import cli
from privstream.pipelines.sources.fields import FieldMapping
from raw_rows import normalised

WHERE = 'status >= 500 and country == "de"'
ROWS = [
    ("a", "x", 500, "de"),
    ("b", "x", 200, "de"),
    ("c", "y", 503, "fr"),
    ("d", "y", 599, "de"),
    ("e", "y", None, "de"),
    ("f", "y", 599, None),
]
NAMES = ("user", "item", "status", "country")
TIME = "2030-01-01T00:00:00Z"


def written(path):
    rows = [dict(zip(NAMES, row, strict=True)) | {"time": TIME} for row in ROWS]
    kind = path.suffix
    if kind == ".csv":
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        fields = [{"name": name, "type": "string"} for name in ("user", "item", "time")]
        fields += [{"name": "status", "type": ["null", "int"]}, {"name": "country", "type": ["null", "string"]}]
        with path.open("wb") as stream:
            fastavro.writer(stream, {"type": "record", "name": "event", "fields": fields}, rows)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "avro"])
def test_all_formats_are_filtered_alike(kind, tmp_path, read_all):
    outcome = read_all(written(tmp_path / f"events.{kind}"), where=WHERE)
    assert [row["user"] for row in outcome.rows] == ["a", "d"] and not outcome.letters


def test_names_and_types_are_checked_before_a_run(tmp_path, read_all):
    path = written(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"--where must name a field of .* no `stats` there"):
        read_all(path, where="stats > 1")
    with pytest.raises(TypeError, match=r"--where reads field `status` of .* as true or false, got int64"):
        read_all(path, where="status")


MESSY = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(["", "1", "2.5", "x", "ü", "\ud800"])
)
RECORD = st.fixed_dictionaries({"user": st.sampled_from(["a", "b", "", None]), "n": MESSY, "t": MESSY})


def read_rows(records, **fields):
    columns = {name: [record[name] for record in records] for name in ("user", "n", "t")}
    columns |= {"item": ["i"] * len(records), "time": [TIME] * len(records)}
    (batch,), refusals = normalised(columns, FieldMapping(time_zone="UTC", **fields))
    return batch.to_pylist(), [(int(refusal.position), refusal.code) for refusal in refusals]


@given(st.lists(RECORD, max_size=8))
def test_a_filtered_run_is_a_run_on_a_filtered_file_and_records_do_not_meddle(records):
    where = 'n > 1 or t == "x"'
    rows, refused = read_rows(records, where=where) if records else ([], [])
    alone = [read_rows([record], where=where) for record in records]
    assert rows == [row for found, _ in alone for row in found]
    assert refused == [(row, code) for row, (_, letters) in enumerate(alone) for _, code in letters]
    passing = [record for record, (found, _) in zip(records, alone, strict=True) if found]
    assert rows == (read_rows(passing)[0] if passing else [])


def test_a_filter_reads_numbers_with_a_decimal_comma_where_no_value_is_read(tmp_path, capsys):
    lines = ["user;item;time;price", "u;i;2024-01-01;12,50", "v;i;2024-01-01;1.000,00", "w;i;2024-01-01;9"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    given = ["--input", str(tmp_path / "a.csv"), "--output", str(tmp_path / "rows.jsonl"), "--dry_run"]
    run = ["--decimal", ",", "--where", "price > 10", "--window", "1d", "--start", "2024-01-01", "--end", "2024-01-02"]
    budget = ["--time_zone", "UTC", "--epsilon", "1", "--delta", "1e-6", "--ledger", "none"]
    for words in (["counts", "--max_contributions", "1"], ["top-k", "--top", "1"]):
        assert cli.main([*words, *given, *run, *budget]) == 0
        assert "2 of 2 rows used" in capsys.readouterr().err
