"""How rows are written for people: by the clocks, the delimiter and the decimal of the input, as workbooks, wide."""

import csv
from datetime import datetime
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow.parquet as pq
import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import arrow_table
from privstream.pipelines.sinks.row_files import Layout, read_row_file, with_item_columns, write_row_file, write_wide
from privstream.pipelines.sources import xlsx_events
from privstream.pipelines.sources.files import files_with, unusable
from privstream.pipelines.sources.formats import Damage
from privstream.transforms.reading.domain import join_item
from privstream.transforms.row_types import KeyCount, QuantileEstimate
from raw_rows import readings

HOUR = 3600
AUTUMN = 1_729_987_200  # 27 October 2024, 02:00 summer time in Berlin; an hour later it is 02:00 again
ITEMS = ["=1+1", "+cmd|' /C calc'!A0", 'a;"b",c', "line\nbreak\r", "\x00\x1f", "_x0041_", "1,5", " blank ", "é", ""]
GERMAN = Layout.of("Europe/Berlin", None, ",")


def count(hour: int, item: str, people: float = 1234.5, upper: float | None = 2e6) -> KeyCount:
    start = AUTUMN + hour * HOUR
    return KeyCount(Timestamp(start), Timestamp(start + HOUR), item, people, 0.25, upper, -7)


ROWS = [count(number, item, upper=None if number else 2e6) for number, item in enumerate(ITEMS)]


@pytest.mark.parametrize("layout", [Layout(), GERMAN, Layout("America/New_York", "\t", "."), Layout("UTC", ",", ",")])
@pytest.mark.parametrize("ending", ["csv", "xlsx", "parquet", "jsonl", "avro"])
def test_whatever_the_layout_rows_come_back(layout: Layout, ending: str, tmp_path: Path) -> None:
    path = str(tmp_path / f"rows.{ending}")
    write_row_file(path, with_item_columns(KeyCount, ("item",), layout), ROWS)
    assert read_row_file(path, KeyCount) == ROWS


def test_a_german_table_has_semicolons_commas_and_local_times(tmp_path: Path) -> None:
    write_row_file(str(tmp_path / "rows.csv"), with_item_columns(KeyCount, (), GERMAN), ROWS[:2])
    header, first, second = (tmp_path / "rows.csv").read_text().splitlines()
    assert header == "window_start;window_end;item;people;lower;upper;noisy"
    assert first == "2024-10-27T02:00:00+02:00;2024-10-27T02:00:00+01:00;=1+1;1234,5;0,25;2000000;-7"
    assert second.endswith(";1234,5;0,25;;-7")
    with (tmp_path / "rows.csv").open(newline="") as stream:
        assert [row["item"] for row in csv.DictReader(stream, delimiter=";")] == ITEMS[:2]
    write_row_file(str(tmp_path / "rows.parquet"), with_item_columns(KeyCount, (), GERMAN), ROWS)
    assert (
        str(pq.read_schema(tmp_path / "rows.parquet").field("window_start").type) == "timestamp[us, tz=Europe/Berlin]"
    )


def test_no_text_of_a_workbook_is_a_formula_and_times_are_dates(tmp_path: Path) -> None:
    write_row_file(str(tmp_path / "rows.xlsx"), with_item_columns(KeyCount, (), GERMAN), ROWS)
    _, *rows = openpyxl.load_workbook(tmp_path / "rows.xlsx").active.iter_rows()
    assert all(row[2].data_type != "f" for row in rows)
    assert rows[0][0].value == datetime(2024, 10, 27, 2) and "+02:00" in rows[0][0].number_format
    assert rows[1][0].value == datetime(2024, 10, 27, 2) and "+01:00" in rows[1][0].number_format
    assert (rows[0][3].value, rows[0][6].value) == (1234.5, -7)


def read_wide(path: Path) -> list[list[Any]]:
    if path.suffix == ".csv":
        with path.open(newline="") as stream:
            return [[cell or None for cell in row] for row in csv.reader(stream)]
    if path.suffix == ".xlsx":
        return [[cell.value for cell in row] for row in openpyxl.load_workbook(path).active.iter_rows()]
    table = pq.read_table(path)
    return [table.column_names, *map(list, zip(*(column.to_pylist() for column in table.columns), strict=True))]


@pytest.mark.parametrize("ending", ["csv", "xlsx", "parquet"])
def test_wide_tables_have_a_row_for_each_item_and_a_column_for_each_window(ending: str, tmp_path: Path) -> None:
    rows = [count(0, "de, a", 5.5), count(1, "de, a", 7), count(1, "=b, c", 90)]
    path = tmp_path / f"rows.{ending}"
    written = with_item_columns(KeyCount, ("country", "page"), Layout("Europe/Berlin"))
    table = arrow_table(written, [row._replace(item=join_item(row.item.split(", "))) for row in rows])
    write_wide(str(path), written, table)
    header, *lines = read_wide(path)
    assert header == ["country", "page", "2024-10-27T02:00:00+02:00", "2024-10-27T02:00:00+01:00"]
    assert [line[:2] for line in lines] == [["=b", "c"], ["de", "a"]]
    assert [[cell and float(cell) for cell in line[2:]] for line in lines] == [[None, 90.0], [5.5, 7.0]]


def test_days_are_headings_and_quantiles_have_lines_of_their_own(tmp_path: Path) -> None:
    day = 86_400
    rows = [
        QuantileEstimate(Timestamp(number * day), Timestamp(number * day + day), rank, 10 * number + rank, 0, 9, 0)
        for number in range(2)
        for rank in (0.5, 0.9)
    ]
    write_wide(str(tmp_path / "rows.csv"), QuantileEstimate, arrow_table(QuantileEstimate, rows))
    assert read_wide(tmp_path / "rows.csv") == [
        ["quantile", "1970-01-01", "1970-01-02"],
        ["0.9", "0.9", "10.9"],
        ["0.5", "0.5", "10.5"],
    ]
    write_wide(str(tmp_path / "none.csv"), KeyCount, arrow_table(KeyCount, []))
    assert read_wide(tmp_path / "none.csv") == [["item"]]


def workbook(path: Path, *rows: list[Any]) -> str:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for cells in book.active.iter_rows():
        for cell in cells:
            if isinstance(cell.value, str) and cell.value.startswith("#"):
                cell.data_type = "e"
    book.create_sheet("other").append(["not read"])
    book.save(path)
    return str(path)


def test_a_bad_row_of_a_workbook_hurts_itself_alone(tmp_path: Path) -> None:
    noon = datetime(2030, 1, 2, 12)
    path = workbook(
        tmp_path / "in.xlsx",
        ["user", "item", "time", "note"],
        [1, "tea", noon, "#N/A"],
        [2.0, "tea", noon],
        [3, "tea", "#DIV/0!"],
        [None, None, None, None],
        [4, "tea", "no date"],
        [5, "tea", noon, None, "beyond"],
        [6, "tea"],
        ["7", "tea", noon],
    )
    fields = ["user", "item", "time"]
    with open(path, "rb") as stream:
        found = list(xlsx_events.read(stream, fields))
    assert {(each.position, each.code) for each in found if isinstance(each, Damage)} == {("row 7", "malformed_line")}
    events = [each for each in found if not isinstance(each, Damage)]
    users = [(user, each.position(row)) for each in events for row, user in enumerate(each.columns["user"].to_pylist())]
    assert users == [(1, "row 2"), (2, "row 3"), (3, "row 4"), (4, "row 6"), (6, "row 8"), ("7", "row 9")]
    local, utc = readings(time_zone="Europe/Berlin"), readings(time_zone=None)
    assert not unusable(files_with(local, path), local)
    assert unusable(files_with(utc, path), utc)["time_zone"] == 3
