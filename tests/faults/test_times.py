"""Times and numbers that real use brought (F5 to F8, F12, F14): what is right."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.pipelines import cli

DAY = "2026-03-02"
UTC = ("--time_zone", "UTC")


def table(path, times, head="user,item,time"):
    path.write_text("\n".join([head, *(f"u{number},rain,{time}" for number, time in enumerate(times))]) + "\n")


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ("%Y-%m-%d %H%M", "2026-03-02 0130", "2026-03-02 130"),
        ("%Y%m%d%H%M%S", "20260302120304", "202603021234"),
        ("%d%m%Y", "02032026", "232026"),
        ("%y%m%d", "260302", "26032"),
        ("%Y%j", "2026061", "202661"),
        ("%d.%m.%Y %I%M%p", "2.3.2026 0130PM", "2.3.2026 130PM"),
        ("%Y%m%d%H%M%S%f", "20260302120304500000", "202603021203045"),
    ],
)
def test_f5_directives_that_touch_need_all_their_digits(form, good, bad, tmp_path, run):
    table(tmp_path / "a.csv", [good] * 20 + [bad] * 30)
    found = run("--input", "a.csv", "--time_format", form, *UTC, items=["rain"])
    assert found.counts() == {"rain": 20} and "20 of 50" in found.said


@pytest.mark.parametrize("time", ["1e99999999999999999999", "-1e99999999999999999999", "1e999999999"])
def test_a_hostile_time_behind_the_first_file_is_set_aside(time, tmp_path, run):
    (tmp_path / "two").mkdir()
    table(tmp_path / "two" / "a.csv", [f"{DAY}T01:00:00Z"] * 20)
    table(tmp_path / "two" / "b.csv", [time])
    found = run("--input", "two", items=["rain"])
    assert found.counts() == {"rain": 20} and "20 of 21" in found.said


def test_a_value_beyond_all_numbers_in_units_counts_as_the_limit(tmp_path, run):
    lines = [f"u{number},rain,{DAY}T01:00:00Z,{1e308 if number else 2}" for number in range(2)]
    (tmp_path / "a.csv").write_text("\n".join(["user,item,time,cost", *lines]) + "\n")
    found = run("--input", "a.csv", "--value", "cost", "--value_unit", "0.01", "--max_value", "1000", items=["rain"])
    assert found.status == 0 and abs(float(found.rows[0]["value"]) - 1200) < 50


@pytest.mark.parametrize("year", ["2610", "1600", "9999"])
def test_f6_no_time_outside_of_the_range_wraps_into_it(year, tmp_path, run):
    micros = pa.array(["2026-03-02T10:00:00"] * 20 + [f"{year}-09-15T09:34:33.709551"] * 30).cast(pa.timestamp("us"))
    columns = {"user": [f"u{number}" for number in range(50)], "item": ["rain"] * 50, "time": micros}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    found = run("--input", "a.parquet", *UTC, items=["rain"])
    assert found.counts() == {"rain": 20} and "20 of 50" in found.said


@pytest.mark.parametrize(
    ("sign", "number", "read"),
    [
        (",", "0.125", None),
        (".", "0,125", None),
        (",", "-0.125", None),
        (",", "00.125", None),
        (",", "012.345", None),
        (",", "1.125", 1125),
        (".", "1,125", 1125),
        (",", "0,4", 0),
        (",", "100", 100),
        (".", "1 125", 1125),
    ],
)
def test_f7_no_number_with_thousands_begins_with_0(sign, number, read, tmp_path, run):
    rows = [
        json.dumps({"user": f"u{row}", "item": "rain", "time": f"{DAY}T10:00Z", "value": number if row < 20 else "1"})
        for row in range(50)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    found = run("--input", "a.jsonl", "--decimal", sign, "--max_value", "2000", items=["rain"])
    assert ("30 of 50" in found.said) == (read is None)
    assert abs(float(found.rows[0]["value"]) - 20 * (read or 0)) < 2000


QUESTIONS = {
    "counts": ["--max_contributions", "1"],
    "heavy-hitters": [],
    "top-k": [],
    "quantiles": ["--low", "0", "--high", "9"],
    "cardinality": ["--timeout", "1d"],
    "ranges": ["--universe", "16", "--delete_values", "leave", "--queries", "ranges"],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_f8_too_many_windows_are_refused_at_once(question, tmp_path, run, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "a.csv", [f"{DAY}T10:00:00Z,5"], "user,item,time,value")
    (tmp_path / "ranges").write_text('{"low": 1, "high": 2}\n')
    windows = ["--window", "20ms", "--start", "2026-01-01", "--end", "2027-01-01", "--epsilon", "1"]
    delta = [] if question == "ranges" else ["--delta", "1e-6"]
    call = [question, "--input", "a.csv", "--output", "rows.csv", *windows, *delta, "--ledger", "none"]
    assert cli.main([*call, "--key", "noise.key", *QUESTIONS[question]]) == 2
    assert "at most 1,048,576 windows, got 1,576,800,000" in capfd.readouterr().err
    assert cli.main(["plan", question, *windows, *delta, *QUESTIONS[question]]) == 2
    assert "at most 1,048,576 windows, got 1,576,800,000" in capfd.readouterr().err


def test_f12_of_events_at_one_time_leaving_comes_last(tmp_path, run):
    rows = []
    for number in range(20):
        both = [f"u{number},enter,{DAY}T10:30:00Z", f"u{number},leave,{DAY}T10:30:00Z"]
        rows += both if number % 2 else both[::-1]
    rows += [f"v{number},enter,{DAY}T10:30:00Z" for number in range(7)]
    (tmp_path / "a.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
    call = ["--input", "a.csv", "--enter_values", "enter", "--leave_values", "leave", "--output", "rows.csv"]
    assert run(*call, command="cardinality").status == 0
    assert "2026-03-03" in (tmp_path / "rows.csv").read_text()
    names, first, *_ = (tmp_path / "rows.csv").read_text().splitlines()
    row = dict(zip(names.split(","), first.split(","), strict=True))
    assert round(float(row["people"])) == 7


END = 1772495999  # the last second of the day


@pytest.mark.parametrize(
    ("unit", "number"),
    [
        ("s", f"{END}.9999996"),
        ("s", f"{END}.9999999"),
        ("s", f"{END}.999999"),
        ("ms", f"{END}999.9999"),
        ("us", f"{END}999999.9"),
        ("ns", f"{END}999999999"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_f14_decimal_seconds_are_cut_down(unit, number, form, tmp_path, run):
    value = json.loads(number)
    if form != "csv" and not value < {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit] * (END + 1):
        pytest.skip("no float is so near")
    if form == "csv":
        table(tmp_path / "a.csv", [number] * 20)
    elif form == "jsonl":
        rows = [f'{{"user": "u{row}", "item": "rain", "time": {number}}}' for row in range(20)]
        (tmp_path / "a.jsonl").write_text("\n".join(rows))
    else:
        columns = {"user": [f"u{row}" for row in range(20)], "item": ["rain"] * 20, "time": [value] * 20}
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert run("--input", f"a.{form}", "--time_unit", unit, items=["rain"]).counts() == {"rain": 20}
