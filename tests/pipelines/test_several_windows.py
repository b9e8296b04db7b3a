"""`privstream counts --over 3h` of items that stay found: a view of the counts of windows, from file to file."""

import json
from pathlib import Path
from typing import Any

import pytest
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import Ledger
from small_shop import open_shop

PEOPLE = {"tea": [400] * 8, "cake": [60, 60, 60, 60, 60, 200, 200, 60], "milk": [12] * 8}
RUN = ["--window", "1h", "--start", "2024-01-01", "--end", "2024-01-01T08:00", "--epsilon", "20", "--delta", "1e-6"]
SUMS = ["--full_share", "0", "--max_value", "9", "--value_field", "cents"]
Rows = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return open_shop(tmp_path_factory.mktemp("shop"), PEOPLE, cents=lambda person: person % 7)


def run(shop: Path, output: Path, *options: str, ledger: str = "none") -> int:
    files = ["--input", f"{shop}/sales.jsonl", "--output", str(output), "--noise_key_file", f"{shop}/key"]
    limits = ["--max_contributions", "24", "--runner", "FnApiRunner", "--ledger", ledger]
    return cli.main(["counts", *files, *RUN, *limits, *options])


def rows_of(path: Path) -> Rows:
    """Return rows by item and hour."""
    found = (json.loads(line) for line in path.read_text().splitlines())
    return {(row["item"], int(row["window_start"][11:13])): row for row in found}


def last(numbers: list[int], hour: int, windows: int) -> int:
    return sum(numbers[max(0, hour - windows + 1) : hour + 1])


@pytest.mark.slow
def test_sums_are_views_of_the_same_release(shop: Path, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.jsonl")
    for name, options in {"one": [], "three": ["--over", "3h"], "all": ["--over", "12h"]}.items():
        assert run(shop, tmp_path / f"{name}.jsonl", *SUMS, *options, ledger=ledger) == 0
    assert len({entry.release for entry in Ledger(ledger).read()}) == 1
    one, three, everything = (rows_of(tmp_path / f"{name}.jsonl") for name in ("one", "three", "all"))
    assert one.keys() == three.keys() == everything.keys() == {(item, hour) for item in PEOPLE for hour in range(8)}
    for (item, hour), row in three.items():
        parts = [one[item, earlier] for earlier in range(max(0, hour - 2), hour + 1)]
        for name in ("count", "sum"):
            assert row[name] == sum(part[name] for part in parts)
        for name in ("count_stddev", "sum_stddev"):
            assert row[name] == pytest.approx(parts[0][name] * len(parts) ** 0.5)
        for name in ("window_start", "window_end", "reported_at", "backfilled"):
            assert row[name] == one[item, hour][name]
        assert row["smoothed"] == pytest.approx(sum(part["smoothed"] for part in parts), abs=0.21)
        assert row["smoothed_upper"] - row["smoothed_lower"] <= 1.4 * (row["upper"] - row["lower"])
        true = last(PEOPLE[item], hour, 3)
        assert abs(row["count"] - true) <= row["error_bound"] and row["rise"] is None
        assert abs(row["mean"] - 3) <= row["mean_error_bound"]
        assert everything[item, hour]["count"] == sum(one[item, earlier]["count"] for earlier in range(hour + 1))
    guarantees = [json.loads((tmp_path / f"{name}.jsonl.guarantee.json").read_text()) for name in ("one", "three")]
    assert guarantees[0]["guarantee"] == guarantees[1]["guarantee"]
    told, numbers = json.dumps(guarantees[1]["accuracy"]), guarantees[1]["accuracy"]
    assert "Counts over 3 windows have a standard deviation of" in told and "contributions" in told
    assert numbers["stddev"] == pytest.approx(3**0.5 * guarantees[0]["accuracy"]["stddev"])
    assert numbers["threshold"] == guarantees[0]["accuracy"]["threshold"]


@pytest.mark.slow
def test_what_is_no_view_is_another_release(shop: Path, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.jsonl")
    options = [[], ["--forget"], ["--forget", "--over", "2h"], ["--over", "start"], ["--domain", f"{shop}/items"]]
    options.append(["--domain", f"{shop}/items", "--over", "2h"])
    for number, some in enumerate(options):
        assert run(shop, tmp_path / f"{number}.jsonl", *some, ledger=ledger) == 0
    assert len({entry.release for entry in Ledger(ledger).read()}) == len(options)


@pytest.mark.slow
def test_the_largest_and_those_of_a_size(shop: Path, tmp_path: Path) -> None:
    assert run(shop, tmp_path / "top.jsonl", "--over", "3h", "--top", "1") == 0
    assert run(shop, tmp_path / "all.jsonl", "--over", "3h") == 0
    assert run(shop, tmp_path / "large.jsonl", "--over", "3h", "--at_least", "150") == 0
    top, everything, large = (rows_of(tmp_path / f"{name}.jsonl") for name in ("top", "all", "large"))
    assert top.keys() == {("tea", hour) for hour in range(8)}
    assert all(abs(row["count"] - last(PEOPLE["tea"], hour, 3)) <= row["error_bound"] for (_, hour), row in top.items())
    assert large == {place: row for place, row in everything.items() if row["smoothed"] >= 150}
    assert {item for item, _ in large} == {"tea", "cake"} and ("cake", 0) not in large


def test_who_forgets_has_noise_and_a_threshold_of_their_own(shop: Path, tmp_path: Path) -> None:
    assert run(shop, tmp_path / "rows.jsonl", "--over", "3h", "--forget") == 0
    assert run(shop, tmp_path / "list.jsonl", "--over", "3h", "--domain", f"{shop}/items") == 0
    for name in ("rows", "list"):
        rows = rows_of(tmp_path / f"{name}.jsonl")
        assert all(row["smoothed"] is None and not row["backfilled"] for row in rows.values())
        promise = json.loads((tmp_path / f"{name}.jsonl.guarantee.json").read_text())
        assert promise["guarantee"]["proof"].endswith("Theorem 2" if name == "rows" else "Theorem 1")
    assert ("milk", 0) in rows and ("milk", 0) not in rows_of(tmp_path / "rows.jsonl")


@pytest.mark.slow
def test_pictures_and_reports_say_what_is_counted(shop: Path, tmp_path: Path) -> None:
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "rows.svg"
    assert run(shop, rows, "--over", "3h") == 0
    assert cli.main(["plot", "counts", "--input", str(rows), "--output", str(picture)]) == 0
    words = " ".join(picture.read_text().split())
    assert "Contributions of people to each item" in words and "People with each item" not in words
    assert cli.main(["report", str(rows), "--output", str(tmp_path / "page.html")]) == 0
    assert "Counts over 3 windows have a standard deviation" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--over", "3h", "--rising"], "--rising must not be given where windows forget or counts span windows"),
        (["--over", "90m"], "--over must be a multiple of window"),
        (["--over", "2000h"], "--over must be at most 1,024 windows where items stay found, got 2,000: give a longer"),
        (["--over", "start", "--forget"], "--forget must not be given with a domain, or where counts are since the"),
    ],
)
def test_refused(options, message, shop, tmp_path, capsys):
    assert run(shop, tmp_path / "rows.jsonl", *options) == 2
    assert message in capsys.readouterr().err
