"""`privstream counts` and `plan counts`, from file to file."""

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from privstream.mechanisms import FoundKeys, KeyedCounts
from privstream.pipelines import cli
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.row_types import KeyCount, KeySum

WINDOWS = 4
RUN = ["--window", "1h", "--start", "2024-01-01", "--end", "2024-01-01T04:00", "--epsilon", "20"]
LIMITED = ["--delta", "1e-6", "--max_contributions", "12"]
FIELDS = ("window_start", "window_end", "item", "people", "lower", "upper", "noisy")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sales: 300 people buy tea in every hour, 90 of them cake, and each has something that nobody else has."""
    folder = tmp_path_factory.mktemp("shop")
    sales = []
    for person in range(300):
        for hour in range(WINDOWS):
            bought = {"tea": 250, f"of {person}": 100} | ({"cake": 9000 if hour else 400} if person < 90 else {})
            when = f"2024-01-01T0{hour}:{person % 60:02}:00Z"
            sales += [{"user": f"u{person}", "item": item, "time": when, "cents": n} for item, n in bought.items()]
    sales += [sales[0] | {"cents": "five"}, sales[0] | {"cents": 2.5}]
    (folder / "sales.jsonl").write_text("".join(f"{json.dumps(sale)}\n" for sale in sales))
    (folder / "key").write_text("a key of this test alone\n")
    (folder / "key").chmod(0o600)
    (folder / "items").write_text("cake\nmilk\ntea\n")
    return folder


def count(shop: Path, output: Path, *options: str) -> list[dict[str, Any]]:
    files = ["--input", f"{shop}/sales.jsonl", "--output", str(output), "--key", f"{shop}/key"]
    assert cli.main(["counts", *files, *RUN, *options, "--ledger", "none", "--runner", "FnApiRunner"]) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def close(rows: list[dict[str, Any]], truth: dict[str, list[int]]) -> None:
    """Check that these items are published in every window, with counts as near as they promise."""
    found = defaultdict(list)
    for row in rows:
        found[row["item"]].append(row)
    assert set(found) == set(truth)
    for item, counts in truth.items():
        assert len(found[item]) == len(counts)
        for row, true in zip(found[item], counts, strict=True):
            assert abs(row["noisy"] - true) < 40 and row["lower"] - 20 <= true <= (row["upper"] or math.inf) + 20


@pytest.mark.parametrize(
    ("options", "truth"),
    [
        ([*LIMITED], {"tea": [300] * 4, "cake": [90] * 4}),
        ([*LIMITED, "--top", "1"], {"tea": [300] * 4}),
        ([*LIMITED, "--over", "2h", "--min_people", "5"], {"tea": [300, 600, 600, 600], "cake": [90, 180, 180, 180]}),
        ([*LIMITED, "--over", "start", "--min_people", "95"], {"tea": [300] * 4}),
        (["--unit", "event", "--domain", "items", "--over", "start"],
         {"tea": [300, 600, 900, 1200], "cake": [90, 180, 270, 360], "milk": [0] * 4}),
        (["--max_contributions", "12", "--domain", "items", "--over", "start", "--top", "2"],
         {"tea": [300] * 4, "cake": [90] * 4}),
    ],
    ids=["window", "top", "2h", "start", "event", "domain"],
)  # fmt: skip
def test_counts_of_each_span(options, truth, shop, tmp_path, monkeypatch):
    monkeypatch.chdir(shop)
    if "event" in options:
        truth = {item: [n + (item == "tea") * 2 for n in counts] for item, counts in truth.items()}  # the two odd sales
    rows = count(shop, tmp_path / "rows.jsonl", *options)
    assert tuple(rows[0]) == FIELDS
    close(rows, truth)
    promise = json.loads((tmp_path / "rows.jsonl.guarantee.json").read_text())
    assert promise["guarantee"]["unit"] == ("one event" if "event" in options else "one person over the whole run")
    assert promise["guarantee"]["delta"] == (1e-6 if "--delta" in options else 0)


def test_sums_and_means(shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--value", "cents", "--max_value", "2000"]
    rows = count(shop, tmp_path / "rows.jsonl", *LIMITED, *limits, "--dead_letter", str(tmp_path / "dead.jsonl"))
    assert tuple(rows[0]) == (*FIELDS, "value", "value_lower", "value_upper", "mean", "mean_margin")
    for row in rows:
        people, value = (300, 250) if row["item"] == "tea" else (90, 400 if "T00" in row["window_start"] else 2000)
        assert abs(row["people"] - people) < 40 and abs(row["value"] - people * value) < 60_000
        assert row["value_lower"] < row["value"] < row["value_upper"] < row["value"] + 40_000
        assert abs(row["mean"] - value) <= 2 * row["mean_margin"]
    assert "1 unusable" in capsys.readouterr().err
    assert [json.loads(line)["reason"] for line in (tmp_path / "dead.jsonl").read_text().splitlines()] == [
        "value must be a number, with a point before decimals"
    ]
    assert [type(row) for row in read_row_file(str(tmp_path / "rows.jsonl"), KeySum)][:1] == [KeySum]
    assert len(read_row_file(str(tmp_path / "rows.jsonl"), KeyCount)) == len(rows)
    assert json.loads((tmp_path / "rows.jsonl.guarantee.json").read_text())["accuracy"]["sum_stddev"] > 0


def in_tokyo(shop: Path, folder: Path, end: str, *options: str) -> tuple[dict[str, float], dict[str, Any]]:
    """Return noisy counts of tea by the day in UTC on which a day of Tokyo begins, and what is promised."""
    files = ["--input", f"{shop}/sales.jsonl", "--output", f"{folder}/rows.jsonl", "--key", f"{shop}/key"]
    days = ["--window", "1day", "--time_zone", "Asia/Tokyo", "--start", "2023-12-31", "--end", end]
    assert cli.main(["counts", *files, *days, *LIMITED, *options, "--ledger", "none", "--runner", "FnApiRunner"]) == 0
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert {row["window_start"][10:] for row in rows} == {"T15:00:00Z"}
    tea = {row["window_start"][:10]: row["noisy"] for row in rows if row["item"] == "tea"}
    return tea, json.loads((folder / "rows.jsonl.guarantee.json").read_text())["parameters"]


def test_days_of_the_calendar_are_by_the_clocks_of_a_zone(shop: Path, tmp_path: Path) -> None:
    """The sales are of four hours after midnight in UTC: in Tokyo it is nine in the morning of the same day."""
    tea, parameters = in_tokyo(shop, tmp_path, "2024-01-03", "--epsilon", "20")
    assert sorted(tea) == ["2023-12-30", "2023-12-31", "2024-01-01"]
    assert tea["2023-12-31"] == pytest.approx(300, abs=20) and abs(tea["2024-01-01"]) < 20
    assert (parameters["window"], parameters["time_zone"]) == ("1day", "Asia/Tokyo")


def test_budgets_and_sums_follow_the_calendar(shop: Path, tmp_path: Path) -> None:
    """From the last day of a year on, who has bought three things has reached a limit, which then starts afresh."""
    more = ["--renew_every", "2days", "--over", "2days", "--domain", f"{shop}/items", "--epsilon", "40"]
    tea, parameters = in_tokyo(shop, tmp_path, "2024-01-04", *more)
    assert tea["2023-12-31"] == pytest.approx(300, abs=30), "1 January in Tokyo, and the day before it"
    assert tea["2024-01-01"] == pytest.approx(300, abs=30), "the second period begins, and the day before it counts"
    assert parameters["renew_every"] == parameters["over"] == "2days"


@pytest.mark.parametrize(
    ("days", "rule"),
    [
        (["--window", "1day", "--start", "2024-01-01", "--renew_every", "1w"], "or years, such as 3months"),
        (["--window", "1moon"], "or days, weeks, months or years of the calendar, such as 1day or 3months"),
        (
            ["--window", "1month", "--start", "2024-01-01T01:00", "--end", "2024-03-01"],
            "start must be where a day begins",
        ),
        (
            ["--window", "1week Europe/Berlin", "--start", "2023-12-31T23:00", "--end", "2024-01-31"],
            "such as 2024-01-29T00:00:00+01:00 or 2024-02-05T00:00:00+01:00, got 2024-01-31T01:00:00+01:00",
        ),
    ],
)  # fmt: skip
def test_windows_that_are_none_of_a_calendar(shop, tmp_path, days, rule, capsys):
    files = ["--input", f"{shop}/sales.jsonl", "--output", f"{tmp_path}/rows.jsonl", "--key", f"{shop}/key"]
    assert cli.main(["counts", *files, *days, "--time_zone", "UTC", "--epsilon", "1", *LIMITED]) == 2
    assert rule in " ".join(capsys.readouterr().err.split())


def test_a_plan_of_months(capsys: pytest.CaptureFixture[str]) -> None:
    of_months, of_days = (
        plan(capsys, "--window", window, "--start", "2026-01-01", "--end", end, "--epsilon", "1", *LIMITED)
        for window, end in (("1month", "2027-01-01"), ("30d", "2026-12-27"))
    )
    assert of_months["budgets"][0]["accuracy"] == of_days["budgets"][0]["accuracy"]


def plan(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert cli.main(["plan", "counts", *options, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_is_about_the_last_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--epsilon", "1", "--delta", "1e-6", "--max_contributions", "20", "--window", "1d"]
    spans = {"7d": 7, "start": "start", "1d": "window"}
    for over, span in spans.items():
        length = ["--start", "2026-01-01", "--end", "2026-01-31"]
        (budget,) = plan(capsys, *options, "--over", over, *length)["budgets"]
        mechanism = (KeyedCounts if over == "start" else FoundKeys)(
            epsilon=1.0, delta=1e-6, contributions=20, over=span, horizon=30, dropped=True,
        )  # fmt: skip
        answer = budget["accuracy"]
        assert answer["stddev"] == mechanism.stddev(30)
        assert answer["threshold"] == mechanism.threshold(30)
    (tmp_path / "list").write_text("\n".join("abcdefghi"))
    asked = f"--epsilon 1 --unit event --domain {tmp_path}/list --max_value 50 --window 1 --start 0 --end 2"
    (listed,) = plan(capsys, *asked.split())["budgets"]
    answer = listed["accuracy"]
    assert answer["threshold"] is None and answer["sum_stddev"] > 10 * answer["stddev"] and answer["margin"] >= 1
    assert listed["guarantee"]["unit"] == "one event"
