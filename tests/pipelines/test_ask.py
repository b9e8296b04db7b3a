"""Questions about frames, from Python: `ask` and `read`."""

import json
import logging
import tempfile
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import guarantee_record
from privstream.pipelines import ask, read
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.sinks.row_files import write_row_file
from privstream.pipelines.sources.frame_files import as_table, write_events
from privstream.transforms import KeyedCounts
from privstream.transforms.row_types import KeyCount, KeyRise

SECRET = "who-nobody-may-see"
FIELDS = {"user": "who", "item": "query", "time": "at"}
RUN = {
    "epsilon": 20,
    "delta": 1e-6,
    "max_contributions": 4,
    "window": "1h",
    "start": "2024-01-01",
    "end": "2024-01-01T02",
}


class Stream:
    """A frame of yet another library, such as a relation of DuckDB."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def searches(people: int = 60) -> pa.Table:
    """60 people search for tea, half of them for cake too."""
    found = [(f"u{person}", item) for person in range(people) for item in ("tea", "cake")[: 1 + person % 2]]
    times = [datetime(2024, 1, 1, 0, number % 60, tzinfo=UTC) for number in range(len(found))]
    who, query = zip(*found, strict=True)
    return pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "who": who, "query": query})


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text("a key of this test alone\n")
    (tmp_path / "key").chmod(0o600)
    return tmp_path / "key"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def bytes_of(frame: Any, folder: Path) -> bytes:
    """Return the file that is made of a frame."""
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    write_events(as_table(frame), ("who", "query", "at"), str(path))
    return path.read_bytes()


def test_the_same_question_is_the_same_release(key: Path, temporary: Path) -> None:
    table, given = searches(), FIELDS | RUN | {"key": key}
    level = logging.getLogger("apache_beam").level
    found = ask("counts", table, **given, output=key.parent / "counts.parquet")
    counts = {
        row["item"]: row["noisy"] for row in found.table.to_pylist()[::-1]
    }  # the largest of each window are first
    assert abs(counts["tea"] - 60) < 20 and abs(counts["cake"] - 30) < 20
    assert found.guarantee.epsilon == 20 and found.accuracy.startswith("Counts have a standard deviation")
    assert "90 of 90 rows used" in found.log and "90 of 90" not in repr(found)
    assert logging.getLogger("apache_beam").level == level
    again = ask("counts", table.to_pandas().set_index("query"), **given)
    assert again.table.equals(found.table)
    assert "a repetition" in again.log and "rows.parquet" not in again.log
    assert len({entry.label for entry in Ledger(f"{key}.ledger.jsonl").contents().entries}) == 1
    assert not list(Path(temporary).iterdir())

    assert read(key.parent / "counts.parquet").table.equals(found.table) and pa.table(found).equals(found.table)
    with pytest.raises(ValueError, match=r"^output must be a new file, but .* exists; overwrite replaces it$"):
        ask("counts", table, **given, output=key.parent / "counts.parquet")


def test_a_file_of_events_has_the_contents_of_a_frame_and_nothing_else(tmp_path: Path) -> None:
    table = searches()
    first = bytes_of(table, tmp_path)
    pandas = table.to_pandas()
    assert bytes_of(pandas, tmp_path) == first
    assert bytes_of(pandas.set_index("at"), tmp_path) == first
    assert bytes_of(pandas.astype({"query": "category"}).assign(more=1), tmp_path) == first
    assert bytes_of(polars.from_arrow(table), tmp_path) == first
    coded = polars.from_arrow(table).with_columns(polars.col("query").cast(polars.Categorical))
    assert bytes_of(coded, tmp_path) == first, "Arrow has it as a dictionary of views"
    assert bytes_of(Stream(table), tmp_path) == first
    assert bytes_of(pa.concat_tables([table[:7], table[7:]]), tmp_path) == first
    assert bytes_of(table.replace_schema_metadata({"made": "today"}), tmp_path) == first
    assert bytes_of(table.take(np.arange(89, -1, -1)), tmp_path) != first
    assert bytes_of(table[:-1], tmp_path) != first
    gaps = pa.table({"who": ["a", None], "query": ["b", "c"], "at": [1, 2]})
    filled = gaps.set_column(0, "who", pa.array(["a", ""]))
    assert bytes_of(gaps, tmp_path) != bytes_of(filled, tmp_path)
    assert b"pandas" not in bytes_of(pandas, tmp_path)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"unit": "people"}, "unit must be 'person' or 'event'"),
        ({"key": None}, "key must be given, so that"),
        ({"user": "Who"}, "user must name a field of the frame"),
        ({"output": "-"}, "output must be a file, or None"),
        ({"run_id": "a\0b"}, "run_id must be valid UTF-8 text"),
        ({"users": "who"}, "counts has no option `users`; did you mean `user`?"),
        ({"watch": 1}, "counts has no option `watch` for frames"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options_are_refused_by_their_names(keywords: dict[str, Any], message: str, key: Path) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        ask("counts", searches(), **(FIELDS | RUN | {"key": key} | keywords))
    assert str(refused.value).startswith(message)
    assert not Path(f"{key}.ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ([{"who": SECRET}], "frame must have __arrow_c_stream__, as those of pandas"),
        (pa.chunked_array([["a"]]), "frame must have columns of one type each"),
        (pd.DataFrame({"who": [1, SECRET], "query": "tea"}), "frame must have columns of one type each: column `who`"),
        (pd.DataFrame({"who": [[SECRET]], "query": "tea", "at": ["2024"]}), "field `who` of the frame must be text or"),
    ],
    ids=["list", "column", "mixed", "lists"],
)
def test_what_is_no_frame_is_refused_without_a_value(frame: Any, message: str, key: Path) -> None:
    with pytest.raises(TypeError) as refused:
        ask("counts", frame, **FIELDS, **RUN, key=key)
    assert str(refused.value).startswith(message) and SECRET not in str(refused.value)


def test_much_that_is_left_out_is_a_warning_and_all_of_it_an_error(key: Path) -> None:
    late = searches().set_column(0, "at", pa.array(["2024-01-01T00:00Z"] * 10 + ["2025-01-01T00:00Z"] * 80))
    with pytest.warns(UserWarning, match="see the log of the result"):
        ask("counts", late, **FIELDS, **RUN, key=key)
    alone = "noise alone: 80 outside of start to end"
    with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match=alone):
        ask("counts", late[10:], **FIELDS, **RUN, key=key)


@pytest.mark.parametrize("ending", ["avro", "parquet", "jsonl", "csv"])
def test_results_are_read_with_types_and_nulls_as_they_were_written(ending: str, tmp_path: Path) -> None:
    start, end = Timestamp(micros=1_704_067_200_000_001), Timestamp(1_704_070_800)
    rows = [
        KeyRise(start, end, 'a "quoted",\nline', 5.0, 0.0, None, 2, None, None, None),
        KeyRise(start, end, "", 1e-9, 0.0, 0.1, -(2**40), -2.5, -4.0, 1.0),
    ]
    path = tmp_path / f"rows.{ending}"
    write_row_file(str(path), KeyRise, rows)
    with pytest.raises(ValueError, match=r"^path must have its guarantee: there is no file"):
        read(path)
    _promise(path, rising=1)
    table = read(path).table
    assert table.schema.types == [
        *[pa.timestamp("us", "UTC")] * 2,
        pa.string(),
        *[pa.float64()] * 3,
        pa.int64(),
        *[pa.float64()] * 3,
    ]
    assert [column.null_count for column in table.columns] == [0] * 5 + [1, 0] + [1] * 3
    assert [list(row.values())[3:] for row in table.to_pylist()] == [list(row)[3:] for row in rows]
    assert table["window_start"].cast(pa.int64()).to_pylist() == [start.micros] * 2
    assert table.to_pandas().window_end.tolist() == [pd.Timestamp("2024-01-01T01:00Z")] * 2


def test_a_result_without_rows_is_a_table_with_columns(tmp_path: Path) -> None:
    write_row_file(str(tmp_path / "rows.parquet"), KeyCount, [])
    _promise(tmp_path / "rows.parquet")
    found = read(str(tmp_path / "rows.parquet"))
    assert found.table.num_rows == 0 and tuple(found.table.column_names) == KeyCount._fields
    assert found.chart().png().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="path must be a file or a folder that exists"):
        read(tmp_path / "other.parquet")


def _promise(path: Path, **parameters: Any) -> None:
    made = KeyedCounts(
        epsilon=1,
        delta=1e-6,
        max_contributions=4,
        window=3600,
        start=0,
        end=7200,
        noise=KeyedNoise(b"an example, not a secret", "a test"),
    )
    content = {
        "made_by": {"command": "privstream counts"},
        "guarantee": guarantee_record(made.guarantee),
        "parameters": parameters,
        "accuracy": made.accuracy.to_dict(),
    }
    Path(f"{path}.guarantee.json").write_text(json.dumps(content))
