"""Right values of faults that real use found in quantiles and set sizes, through the command line."""

import csv
from pathlib import Path

import numpy as np
import pytest
from privstream.pipelines import cli

KEY = "0123456789abcdef"


def answers(folder: Path, rows: list[tuple[str, ...]], header: str, word: str, *options: str) -> list[dict[str, str]]:
    """Run a question on a file of rows, and return what it publishes."""
    (folder / "in.csv").write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    (folder / "key").write_text(KEY)
    (folder / "key").chmod(0o600)
    files = ("--input", f"{folder}/in.csv", "--output", f"{folder}/out.csv", "--key", f"{folder}/key")
    assert cli.main([word, *files, "--ledger", "none", *options]) == 0
    with (folder / "out.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("limit", [(), ("--max_per_window", "10")])
@pytest.mark.parametrize("time", ["2024-01-01T00:00:00Z", "2024-01-01"])
def test_t7_equal_rows_of_a_person_do_not_collapse(tmp_path: Path, limit: tuple[str, ...], time: str) -> None:
    """Nine values of 10 and one of 90 in the same minute, or on the same day: nine tenths are at most 10."""
    rows = [(f"u{user}", "10" if n else "90", time) for user in range(3000) for n in range(10)]
    run = ("--window", "1d", "--start", "2024-01-01", "--end", "2024-01-02", "--epsilon", "1", "--delta", "1e-6")
    asked = (
        "--quantiles",
        "0.5,0.8,0.98",
        "--low",
        "0",
        "--high",
        "100",
        "--time_format",
        "%Y-%m-%d",
        "--time_zone",
        "UTC",
    )
    asked = asked if len(time) == 10 else asked[:-4]
    found = answers(tmp_path, rows, "user,value,time", "quantiles", *run, *asked, *limit)
    median, most, top = (float(row["value"]) for row in found)
    assert abs(median - 10) < 0.2 and abs(most - 10) < 0.2 and abs(top - 90) < 0.2
    assert all(
        float(row["lower"]) <= value <= float(row["upper"]) for row, value in zip(found, (10, 10, 90), strict=True)
    )


def test_t7_medians_of_receipts_are_held(tmp_path: Path) -> None:
    """Those of all purchases, of which heavy buyers have more and smaller ones, on dates without times."""
    draw = np.random.default_rng(1)
    rows, prices = [], [[] for _ in range(8)]
    for user in range(2000):
        number = int(draw.integers(1, 9))
        for week in range(8):
            for price in np.round(draw.lognormal(4 - 0.2 * number, 0.3, number), 2):
                prices[week].append(price)
                rows.append((f"u{user}", str(price), f"2024-{week + 1:02}-01"))
    run = ("--window", "1month", "--start", "2024-01-01", "--end", "2024-09-01", "--epsilon", "2", "--delta", "1e-6")
    asked = ("--low", "1", "--high", "500", "--scale", "log", "--max_per_window", "8", "--max_contributions", "64")
    found = answers(
        tmp_path, rows, "user,value,time", "quantiles", *run, *asked, "--time_format", "%Y-%m-%d", "--time_zone", "UTC"
    )
    true = [np.quantile(week, 0.5, method="inverted_cdf") for week in prices]
    held = [float(row["lower"]) <= value <= float(row["upper"]) for row, value in zip(found, true, strict=True)]
    assert sum(held) >= 7
    assert all(abs(float(row["value"]) / value - 1) < 0.1 for row, value in zip(found, true, strict=True))


def weekdays(present: list[int], day: str = "2024-01-01") -> list[tuple[str, ...]]:
    """Return events of so many people on each day: others each time, as of a shop whose people come seldom."""
    first, rows = np.datetime64(day), []
    for number, size in enumerate(present):
        rows += [(f"u{(17 * number + n) % 4000}", f"{first + number}T10:00:00Z") for n in range(size)]
    return rows


DAYS = ("--window", "1d", "--timeout", "1d", "--start", "2024-01-01", "--epsilon", "1")


def test_t3_the_weekly_dip_is_plain_to_see(tmp_path: Path) -> None:
    """Without delta: 200 people on workdays and 14 at weekends, 151 days; intervals of 95% hold."""
    present = [14 if day % 7 > 4 else 200 for day in range(151)]
    rows = weekdays(present)
    most = max(np.unique([user for user, _ in rows], return_counts=True)[1])
    asked = ("--end", "2024-05-31", "--max_contributions", str(most))
    found = answers(tmp_path, rows, "user,time", "cardinality", *DAYS, *asked)
    held = np.array([float(row["lower"]) <= n <= float(row["upper"]) for row, n in zip(found, present, strict=True)])
    dip = np.array(present) == 14
    assert held.mean() >= 0.9 and held[dip].mean() >= 0.85
    estimates = np.array([float(row["people"]) for row in found])
    assert estimates[~dip].mean() > 5 * estimates[dip].mean()
    assert np.all(estimates[~dip] > np.median(estimates[dip]))


def test_t10_intervals_are_as_wide_as_the_noise_and_no_wider(tmp_path: Path) -> None:
    present = [0 if day % 7 > 4 else 2600 for day in range(28)]
    asked = ("--end", "2024-01-29", "--delta", "1e-6")
    found = answers(tmp_path, weekdays(present), "user,time", "cardinality", *DAYS, *asked)
    widths = [float(row["upper"]) - float(row["lower"]) for row in found]
    assert max(widths) <= 2 * int(found[0]["error_bound"]) <= 200
    held = [float(row["lower"]) <= size <= float(row["upper"]) for row, size in zip(found, present, strict=True)]
    assert sum(held) >= 24


def test_t14_a_limit_makes_set_sizes_as_exact_as_counts(tmp_path: Path) -> None:
    """People who come three times in ninety days at most need noise for three."""
    present = [100] * 90
    rows = [(f"u{user}", time) for (_, time), user in zip(weekdays(present), np.arange(9000) % 3000, strict=True)]
    asked = ("--end", "2024-03-31", "--delta", "1e-6", "--max_contributions", "3")
    found = answers(tmp_path, rows, "user,time", "cardinality", *DAYS, *asked)
    errors = np.array([float(row["noisy"]) for row in found]) - present
    assert np.sqrt(np.mean(np.square(errors))) < 1.5 * 4.2247 * np.sqrt(3)
