"""Where limits leave out much, full numbers are seen first, and nothing exact is printed beside what is told of it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines import cli
from privstream.pipelines.plot.chart import UTC
from privstream.pipelines.report.result import Result
from privstream.pipelines.report.section import newest_in_words
from privstream.pipelines.sinks.left_out import limits_bind, limits_in_words, share_left_out
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.rows import KeyCount

HOURS, PEOPLE = 4, 600


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everybody has tea in every hour, and a third of them has four other things too."""
    folder = tmp_path_factory.mktemp("shop")
    events = [
        {"user": f"u{person}", "item": item, "time": f"2024-01-01T{hour:02}:{person % 60:02}:00Z"}
        for hour in range(HOURS)
        for person in range(PEOPLE)
        for item in ("tea", *(("cake", "milk", "bread", "jam") if person % 3 == 0 else ()))
    ]
    (folder / "sales.jsonl").write_text("\n".join(map(json.dumps, events)))
    (folder / "key").write_bytes(bytes(range(32)))
    (folder / "key").chmod(0o600)
    return folder


def count(shop: Path, output: str, limit: int, *options: str) -> None:
    line = ["counts", "--input", str(shop / "sales.jsonl"), "--output", output, "--window", "1h", "--overwrite"]
    line += ["--start", "2024-01-01", "--windows", str(HOURS), "--epsilon", "30", "--delta", "1e-3", "--ledger", "none"]
    line += ["--max_contributions", str(limit), "--noise_key_file", str(shop / "key"), "--run_id", "same"]
    assert cli.main([*line, *options]) == 0


@pytest.mark.slow
def test_rows_and_pictures_show_full_numbers_first_and_nothing_exact_is_printed(shop, tmp_path, capsys):
    rows = tmp_path / "rows.avro"
    count(shop, str(rows), 8, "--full_share", "0.3")
    printed = capsys.readouterr()
    assert "\nhow much limits leave out is told in the rows, with noise" in printed.err
    warning = next(line for line in printed.err.splitlines() if line.startswith("WARNING: "))
    assert "limits leave out about 4" in warning and "is in this): --max_contributions. Counts" in warning
    assert "2,400" not in printed.err and "left out, who" not in printed.err
    found = read_row_file(str(rows), KeyCount)
    last = max(found, key=lambda row: row.window_start)
    assert last.used_up_lower <= 200 <= last.used_up_upper and abs(last.used_up - 200) < 60
    assert cli.main(["plot", "counts", "--input", str(rows), "--output", str(tmp_path / "picture.svg")]) == 0
    picture = (tmp_path / "picture.svg").read_text()
    assert "estimated without limits" in picture and "used up theirs" in " ".join(picture.split())
    capsys.readouterr()
    count(shop, "-", 8, "--full_share", "0.3")
    table = capsys.readouterr().out
    heading = next(line for line in table.splitlines() if "smoothed" in line)
    assert heading.index("full") < heading.index("smoothed")
    assert "have used up theirs" in " ".join(table.split())


def test_without_a_share_the_exact_warning_stands_on_standard_error_alone(shop, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    count(shop, str(rows), 8, "--full_share", "0")
    printed = capsys.readouterr()
    assert "WARNING: limits have left out 43% of all contributions" in printed.err  # 200 people, 12 of 20 each
    assert "43%" not in printed.out
    exact = str(200 * 12)
    for file in tmp_path.iterdir():
        assert "left out 43%" not in file.read_text() and f'"{exact}"' not in file.read_text()


def test_a_limit_for_each_window_counts_and_is_told(shop, tmp_path, capsys):
    rows = tmp_path / "rows.avro"
    count(shop, str(rows), 8, "--max_contributions_per_window", "2")
    assert "at most 2 times in a window" in capsys.readouterr().err
    found = read_row_file(str(rows), KeyCount)
    tea = [row.count for row in found if row.item == "tea"]
    assert len(tea) == HOURS and all(abs(number - 400 - 80) < 60 for number in tea)  # two of five, by chance


def in_window(hour: int, kept: int | None, left_out: int | None, full: float | None = 1.0) -> KeyCount:
    start, end = Timestamp(3600 * hour), Timestamp(3600 * hour + 3600)
    row = KeyCount("", start, end, "tea", 9, 1.0, 5, 7, 11, None, None, None, end, False)
    return row._replace(kept=kept, left_out=left_out, used_up=hour, used_up_lower=0, used_up_upper=9, full=full)


def test_what_is_told_is_added_up_over_windows_once_for_each() -> None:
    rows = [in_window(1, 90, 10), in_window(1, 90, 10), in_window(2, 110, -10), in_window(3, 90, 20)]
    assert share_left_out(rows) == pytest.approx(20 / 310)
    assert limits_bind(rows) and not limits_bind(rows[:3]) and not limits_bind([in_window(1, 50, 50, None)])
    words = limits_in_words(rows, None)
    assert "about 6% of all contributions (of a person with far more than limits allow, only a" in words
    assert "and by the last window about 3 people (between 0 and 9) have used up theirs" in words
    assert share_left_out([in_window(1, None, None)]) is None and limits_in_words([], None) == ""
    noise = [in_window(hour, 100, number) for hour, number in enumerate((90, -80, 70, -60, 80))]
    assert limits_in_words(noise, None).startswith("With noise: limits leave out about 17% (between 0% and 53%) of all")
    assert "leave out about 17% (between 2% and 29%) of all" in limits_in_words(noise, (30.0, 20.0))
    swamped = [in_window(hour, 100, number) for hour, number in enumerate((900, -990, 900, -990, 200))]
    told = limits_in_words(swamped, None)
    assert told.startswith("Noise is too large to tell how much limits leave out.") and "%" not in told
    assert "about 4 people (between 0 and 9)" in told
    assert share_left_out(noise) >= 0.05 and not limits_bind(noise)  # noise explains these
    assert limits_bind([in_window(hour, 100, number) for hour, number in enumerate((20, 18, 25, 19, 22))])
    assert share_left_out([in_window(1, 5, -90)]) is None and share_left_out([in_window(1, 50, -9)]) == 0


def test_the_first_numbers_of_a_page_are_those_of_its_picture() -> None:
    """As full numbers are drawn where limits leave out much, these are what is told first; others are not mixed in."""
    rows = [in_window(hour, 100, 20)._replace(full=20.0, full_lower=15.0, full_upper=25.0) for hour in range(5)]
    rows.append(rows[-1]._replace(item="cake", full=None))

    def told(given: list[KeyCount]) -> list[str]:
        result = SimpleNamespace(rows=given, row_type=KeyCount, promise=SimpleNamespace(clocks=UTC))
        return newest_in_words(cast(Result, result))

    assert told(rows) == [
        "In the window until 1970-01-01 05:00 UTC, estimated without limits: tea: 20 (between 15 and 25)."
    ]
    assert told([row._replace(left_out=1) for row in rows]) == [
        "In the window until 1970-01-01 05:00 UTC: tea: 9 (between 7 and 11); cake: 9 (between 7 and 11)."
    ]


def promised(rows: Path) -> dict[str, Any]:
    """The parameters that the guarantee file beside rows says."""
    found: dict[str, Any] = json.loads(Path(f"{rows}.guarantee.json").read_text())["parameters"]
    return found


@pytest.mark.slow
def test_a_run_over_files_pays_for_what_limits_leave_out_unless_it_is_told_not_to(shop, tmp_path, capsys):
    rows, same, none = (tmp_path / f"{name}.avro" for name in ("rows", "same", "none"))
    budget = ("--epsilon", "2", "--delta", "1e-6")
    count(shop, str(rows), 8, *budget)
    assert "limits leave out about" in capsys.readouterr().err
    count(shop, str(same), 8, *budget, "--full_share", "0.05")
    count(shop, str(none), 8, *budget, "--full_share", "0")
    found, plain = read_row_file(str(rows), KeyCount), read_row_file(str(none), KeyCount)
    assert promised(rows)["full_share"] == 0.05 and found == read_row_file(str(same), KeyCount), "one run, not two"
    assert all(row.kept is not None and row.used_up is not None for row in found)
    assert all(row.kept is None for row in plain) and plain[0].count_stddev < found[0].count_stddev


@pytest.mark.parametrize(
    "options",
    [
        ("8", "--epsilon", "2", "--delta", "1e-6", "--domain", "a"),  # nobody has more than 4 of a list of one
        ("1", "--epsilon", "2", "--delta", "1e-6"),  # Laplace noise, which would be several times as large
        ("8", "--epsilon", "2", "--delta", "0", "--domain", "abc"),
        ("8", "--epsilon", "2", "--delta", "1e-6", "--forget"),
    ],
)
def test_nothing_is_paid_where_nothing_can_come_out_or_it_would_cost_much(shop, tmp_path, options):
    limit, *rest = options
    if "--domain" in rest:
        domain = tmp_path / "items.txt"
        domain.write_text("\n".join(["tea", "cake", "milk"][: len(rest[-1])]))
        rest[-1] = str(domain)
    rows = tmp_path / "rows.avro"
    count(shop, str(rows), int(limit), *rest)
    found = read_row_file(str(rows), KeyCount)
    assert "full_share" not in promised(rows) and all(row.kept is None for row in found)


def test_a_plan_is_about_the_run_with_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "plan",
        "counts",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--max_contributions",
        "40",
        "--windows",
        "13",
        "--json",
    ]
    numbers = []
    for more in ([], ["--full_share", "0.05"], ["--full_share", "0"]):
        assert cli.main([*line, *more]) == 0
        (budget,) = json.loads(capsys.readouterr().out)["budgets"]
        numbers.append(budget["methods"]["the only method"])
    assert numbers[0] == numbers[1] and numbers[0]["stddev"] > numbers[2]["stddev"]
    assert numbers[0]["kept_stddev"] > 0 and "kept_stddev" not in numbers[2]


def test_a_monitor_over_files_pays_for_it_too_and_its_plan_says_so(shop, tmp_path, capsys):
    (tmp_path / "monitor.yaml").write_text(
        f"data: {{input: {shop}/sales.jsonl, user: user, time: time}}\n"
        f"window: 1h\nstart: 2024-01-01\nwindows: {HOURS}\n"
        "privacy: {epsilon: 2, delta: 1e-6}\n"
        f"questions:\n  told: {{question: counts, item: item, max_contributions: 8}}\n"
        f"  plain: {{question: counts, item: item, max_contributions: 8, full_share: 0}}\n"
        f"output: {{folder: {tmp_path}/out}}\n"
    )
    assert cli.main(["plan", str(tmp_path / "monitor.yaml")]) == 0
    assert "those that limits leave out with one of" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["run", str(tmp_path / "monitor.yaml"), "--noise_key_file", f"{shop}/key", "--ledger", "none"]) == 0
    files = {name: next((tmp_path / "out").glob(f"{name}.*.guarantee.json")) for name in ("told", "plain")}
    given = {name: json.loads(file.read_text())["parameters"] for name, file in files.items()}
    assert given["told"]["full_share"] == 0.05 and given["plain"]["full_share"] == 0
